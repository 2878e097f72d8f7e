# Workers that make an optimiser step together: one type, one zone, close together. The pool opens
# their ports to each other alone.

locals {
  name = "${var.fleet.name}-${var.name}"
  # A member is a worker; the pool counts instances.
  per_instance = coalesce(var.workers_per_machine, 1)
  instances    = ceil(var.size / local.per_instance)
}

resource "aws_placement_group" "this" {
  name     = local.name
  strategy = "cluster"
}

module "pool" {
  source                  = "../worker_pool"
  fleet                   = var.fleet
  nats_url                = var.nats_url
  name                    = var.name
  stages                  = ["train_shard", "publish_weights"]
  instance_types          = [var.instance_type]
  image_id                = var.image_id
  min                     = ceil(var.min / local.per_instance)
  max                     = local.instances
  step                    = local.instances
  workers_per_machine     = var.workers_per_machine
  cooldown_s              = var.cooldown_s
  cost                    = var.cost
  spot                    = var.spot
  grace_s                 = var.grace_s
  hook                    = { heartbeat_s = var.heartbeat_s }
  disk_gib                = var.disk_gib
  zone                    = var.zone
  settings                = var.settings
  placement_group         = aws_placement_group.this.name
  efa                     = var.efa
  capacity_reservation_id = var.capacity_reservation_id
  session_manager         = var.session_manager
}
