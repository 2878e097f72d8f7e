# A group of instances whose workers serve the same stages. The autoscaler in the coordinator sets
# how many there are.

locals {
  name   = "${var.fleet.name}-${var.name}"
  auth   = var.fleet.auth
  stages = [for stage in var.stages : split(":", stage)[0]]
  user   = join("-", local.stages)
  group  = "arn:${data.aws_partition.this.partition}:autoscaling:${var.fleet.network.region}:*:autoScalingGroup:*:autoScalingGroupName/${local.name}"
  # Of an instance. Where nothing says it, install.sh decides by the GPUs, which are not known here.
  workers = coalesce(var.workers_per_machine, try(tonumber(var.settings["MILLRACE_PROCESSES"]), null), 1)
  # Members of a gang connect to each other at ports of their choice.
  gang   = contains(local.stages, "train_shard") && var.max > 1
  subnet = var.zone == null ? var.fleet.network.subnet_ids : [var.fleet.network.subnet_ids[var.zone]]
}

data "aws_partition" "this" {}

module "role" {
  source          = "../instance_role"
  name            = local.name
  duties          = local.stages
  artifacts       = var.fleet.artifacts
  session_manager = var.session_manager

  secret_files = {
    "user.nk" = file("${local.auth}/keys/${local.user}.nk")
    "ca.pem"  = file("${local.auth}/tls/ca.pem")
  }
  # The configuration has the public half of every key, so it changes with them.
  secret_version = parseint(substr(sha256(join("", [
    for name in ["nats-server.conf", "tls/ca.pem"] : file("${local.auth}/${name}")
  ])), 0, 8), 16)

  statements = [{
    Sid      = "FinishOwnDrain"
    Effect   = "Allow"
    Action   = ["autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat"]
    Resource = local.group
  }]
}

module "user_data" {
  source  = "../user_data"
  bucket  = var.fleet.artifacts.bucket
  release = var.fleet.artifacts.release

  settings = merge(var.settings, {
    MILLRACE_ROLE           = "worker"
    AWS_REGION              = var.fleet.network.region
    MILLRACE_OBJECTS        = var.fleet.artifacts.location
    NATS_URL                = var.nats_url
    MILLRACE_SECRET         = module.role.secret_id
    MILLRACE_POOL           = var.name
    MILLRACE_STAGES         = join(",", var.stages)
    MILLRACE_GRACE          = var.grace_s
    MILLRACE_LIFECYCLE_HOOK = var.hook.name
    MILLRACE_SCALING_GROUP  = local.name
  }, var.workers_per_machine == null ? {} : { MILLRACE_PROCESSES = var.workers_per_machine })
}

# What members send to each other has no authentication and no encryption: nobody else reaches their
# ports. EFA needs all protocols, in both directions.
resource "aws_security_group" "gang" {
  count       = local.gang ? 1 : 0
  name        = local.name
  description = "Members of ${local.name}"
  vpc_id      = var.fleet.network.vpc_id
  tags        = { Name = local.name }
}

resource "aws_vpc_security_group_ingress_rule" "gang" {
  count                        = local.gang ? 1 : 0
  security_group_id            = aws_security_group.gang[0].id
  description                  = "From other members"
  referenced_security_group_id = aws_security_group.gang[0].id
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_egress_rule" "gang" {
  count                        = local.gang ? 1 : 0
  security_group_id            = aws_security_group.gang[0].id
  description                  = "To other members"
  referenced_security_group_id = aws_security_group.gang[0].id
  ip_protocol                  = "-1"
}

module "template" {
  source                  = "../launch_template"
  name                    = local.name
  image_id                = coalesce(var.image_id, var.fleet.image_id)
  root_device             = var.fleet.root_device
  instance_type           = var.instance_types[0]
  profile                 = module.role.profile
  user_data               = module.user_data.script
  security_group_ids      = concat([var.fleet.network.member_group_id], aws_security_group.gang[*].id, var.security_group_ids)
  disk_gib                = var.disk_gib
  http_tokens             = var.http_tokens
  efa                     = var.efa
  placement_group         = var.placement_group
  capacity_reservation_id = var.capacity_reservation_id
  tags                    = { "millrace:fleet" = var.fleet.name, "millrace:pool" = var.name }
}

resource "aws_autoscaling_group" "this" {
  name                = local.name
  min_size            = var.min
  max_size            = var.max
  desired_capacity    = var.desired == null ? var.min : var.desired
  vpc_zone_identifier = local.subnet
  capacity_rebalance  = var.spot
  # The autoscaler says which instance goes. Moving one merely for the balance of zones costs a
  # drain.
  suspended_processes = ["AZRebalance"]
  # Where it lowers the number alone, an instance that still starts goes before one that works.
  termination_policies = ["NewestInstance"]
  # Capacity may be short for hours; the alarms of the module observability tell.
  wait_for_capacity_timeout = "0"
  metrics_granularity       = "1Minute"
  enabled_metrics           = ["GroupDesiredCapacity", "GroupInServiceInstances", "GroupTerminatingInstances"]

  mixed_instances_policy {
    instances_distribution {
      on_demand_base_capacity                  = var.spot ? var.on_demand_base : 0
      on_demand_percentage_above_base_capacity = var.spot ? 0 : 100
      spot_allocation_strategy                 = "price-capacity-optimized"
    }
    launch_template {
      launch_template_specification {
        launch_template_id = module.template.id
        version            = module.template.version
      }
      dynamic "override" {
        for_each = var.instance_types
        content { instance_type = override.value }
      }
    }
  }

  # A part of the group: as a resource of its own the hook would be destroyed before the group, and
  # `terraform destroy` would end the workers undrained.
  initial_lifecycle_hook {
    name                 = var.hook.name
    lifecycle_transition = "autoscaling:EC2_INSTANCE_TERMINATING"
    heartbeat_timeout    = var.hook.heartbeat_s
    default_result       = "CONTINUE"
  }

  dynamic "tag" {
    for_each = { Name = local.name, "millrace:fleet" = var.fleet.name, "millrace:pool" = var.name }
    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  timeouts { delete = "30m" }

  # The autoscaler owns it.
  lifecycle { ignore_changes = [desired_capacity] }
}
