# One region, one GPU pool that generates and trains, one CPU pool for environments and rewards.

locals {
  fleet = {
    name      = var.name
    auth      = var.auth
    image_id  = var.image_id
    network   = module.network
    artifacts = module.artifacts
  }
}

module "network" {
  source = "../../modules/network"
  name   = var.name
  cidr   = var.cidr
}

module "artifacts" {
  source        = "../../modules/artifacts"
  name          = var.name
  release       = var.release
  force_destroy = var.force_destroy
}

module "nats" {
  source    = "../../modules/nats"
  fleet     = local.fleet
  snapshots = var.snapshots
}

module "gpu" {
  source         = "../../modules/worker_pool"
  fleet          = local.fleet
  nats_url       = module.nats.url
  name           = "gpu"
  stages         = ["generate", "train_shard", "publish_weights"]
  image_id       = var.gpu_image_id
  instance_types = ["g6.xlarge", "g5.xlarge"]
  max            = 4
  cost           = 5
}

module "cpu" {
  source         = "../../modules/worker_pool"
  fleet          = local.fleet
  nats_url       = module.nats.url
  name           = "cpu"
  stages         = ["env_step", "reward"]
  instance_types = ["c6i.xlarge", "c6a.xlarge", "c5.xlarge"]
  max            = 8
}

module "coordinator" {
  source   = "../../modules/coordinator"
  fleet    = local.fleet
  nats_url = module.nats.url
  pools    = [module.gpu.scaling, module.cpu.scaling]
  # A way to the nats-servers without a VPN.
  session_manager = true
}
