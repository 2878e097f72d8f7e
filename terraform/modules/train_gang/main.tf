# Workers that make an optimiser step together: one type, one zone, close together, with ports open
# to each other alone.

locals {
  name = "${var.fleet.name}-${var.name}"
}

resource "aws_placement_group" "this" {
  name     = local.name
  strategy = "cluster"
}

# What members send to each other has no authentication and no encryption: nobody else reaches their
# ports. EFA needs all protocols, in both directions.
resource "aws_security_group" "this" {
  name        = local.name
  description = "Members of ${local.name}"
  vpc_id      = var.fleet.network.vpc_id
  tags        = { Name = local.name }
}

resource "aws_vpc_security_group_ingress_rule" "member" {
  security_group_id            = aws_security_group.this.id
  description                  = "From other members"
  referenced_security_group_id = aws_security_group.this.id
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_egress_rule" "member" {
  security_group_id            = aws_security_group.this.id
  description                  = "To other members"
  referenced_security_group_id = aws_security_group.this.id
  ip_protocol                  = "-1"
}

module "pool" {
  source                  = "../worker_pool"
  fleet                   = var.fleet
  nats_url                = var.nats_url
  name                    = var.name
  stages                  = ["train_shard", "publish_weights"]
  instance_types          = [var.instance_type]
  image_id                = var.image_id
  min                     = var.min
  max                     = var.size
  step                    = var.size
  cooldown_s              = var.cooldown_s
  cost                    = var.cost
  spot                    = var.spot
  grace_s                 = var.grace_s
  hook                    = { heartbeat_s = var.heartbeat_s }
  disk_gib                = var.disk_gib
  zone                    = var.zone
  security_group_ids      = [aws_security_group.this.id]
  placement_group         = aws_placement_group.this.name
  efa                     = var.efa
  capacity_reservation_id = var.capacity_reservation_id
  session_manager         = var.session_manager
}
