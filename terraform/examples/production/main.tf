# Pools apart: sampling on spot GPUs, environments, rewards, and a gang that trains on reserved
# machines.

locals {
  fleet = {
    name      = var.name
    auth      = var.auth
    image_id  = var.image_id
    network   = module.network
    artifacts = module.artifacts
  }
  pools = [module.generate, module.env_step, module.reward, module.train]
}

module "network" {
  source = "../../modules/network"
  name   = var.name
  cidr   = var.cidr
  nat    = "per_zone"
  # S3 apart, what instances call does not pass the NAT gateways.
  interface_endpoints = ["autoscaling", "monitoring", "secretsmanager"]
  monitoring_cidrs    = var.monitoring_cidrs
}

module "artifacts" {
  source                = "../../modules/artifacts"
  name                  = var.name
  bucket                = var.bucket
  release               = var.release
  kms_key_arn           = var.kms_key_arn
  keep_overwritten_days = 30
}

module "nats" {
  source        = "../../modules/nats"
  fleet         = local.fleet
  instance_type = "m6i.xlarge"
  data_gib      = 200
  client_cidrs  = var.client_cidrs
}

module "generate" {
  source         = "../../modules/worker_pool"
  fleet          = local.fleet
  nats_url       = module.nats.url
  name           = "generate"
  stages         = ["generate"]
  image_id       = var.gpu_image_id
  instance_types = ["g6e.xlarge", "g6.xlarge", "g5.xlarge"]
  max            = 32
  step           = 8
  cooldown_s     = 60
  cost           = 8
}

module "env_step" {
  source         = "../../modules/worker_pool"
  fleet          = local.fleet
  nats_url       = module.nats.url
  name           = "env-step"
  stages         = ["env_step"]
  instance_types = ["c6i.2xlarge", "c6a.2xlarge", "c5.2xlarge"]
  max            = 16
  on_demand_base = 1
}

module "reward" {
  source         = "../../modules/worker_pool"
  fleet          = local.fleet
  nats_url       = module.nats.url
  name           = "reward"
  stages         = ["reward"]
  instance_types = ["c6i.2xlarge", "c6a.2xlarge", "c5.2xlarge"]
  max            = 16
  on_demand_base = 1
}

module "train" {
  source                  = "../../modules/train_gang"
  fleet                   = local.fleet
  nats_url                = module.nats.url
  instance_type           = "p5.48xlarge"
  image_id                = var.gpu_image_id
  size                    = 16
  workers_per_machine     = 8
  zone                    = var.train_zone
  efa                     = 32
  capacity_reservation_id = var.capacity_reservation_id
  cost                    = 100
}

module "coordinator" {
  source          = "../../modules/coordinator"
  fleet           = local.fleet
  nats_url        = module.nats.url
  pools           = local.pools[*].scaling
  session_manager = true
}

module "observability" {
  source            = "../../modules/observability"
  name              = var.name
  groups            = { for pool in local.pools : pool.scaling.name => pool.group }
  coordinator_group = module.coordinator.group
  nats_instance_ids = module.nats.instance_ids
  email             = var.email
  flow_logs         = { vpc_id = module.network.vpc_id }
}
