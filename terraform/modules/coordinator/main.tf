# Two coordinators in two zones. One leads, the other stands by; a lease in NATS decides. The
# autoscaler is in them.

locals {
  name = "${var.fleet.name}-coordinator"
  auth = var.fleet.auth

  scale = join("\n", concat(
    ["interval_s = ${var.interval_s}", "dry_run = ${var.dry_run}"],
    flatten([
      for pool in var.pools : concat(
        ["", "[[pool]]"],
        [
          for key in ["name", "stages", "min", "max", "step", "workers_per_machine", "cooldown_s", "start_up_s", "cost"] :
          "${key} = ${jsonencode(pool[key])}" if pool[key] != null
        ],
        ["target = { kind = \"aws\", group = ${jsonencode(pool.group)} }"],
      )
    ]),
    [""],
  ))

  groups = [
    for pool in var.pools :
    "arn:${data.aws_partition.this.partition}:autoscaling:${var.fleet.network.region}:*:autoScalingGroup:*:autoScalingGroupName/${pool.group}"
  ]
}

data "aws_partition" "this" {}

module "role" {
  source          = "../instance_role"
  name            = local.name
  duties          = ["coordinator"]
  artifacts       = var.fleet.artifacts
  session_manager = var.session_manager

  secret_files = {
    "user.nk" = file("${local.auth}/keys/coordinator.nk")
    "ca.pem"  = file("${local.auth}/tls/ca.pem")
  }
  # The configuration has the public half of every key, so it changes with them.
  secret_version = parseint(substr(sha256(join("", [
    for name in ["nats-server.conf", "tls/ca.pem"] : file("${local.auth}/${name}")
  ])), 0, 8), 16)

  statements = concat(
    # AWS knows no narrower right to describe groups.
    [{ Sid = "SeePools", Effect = "Allow", Action = "autoscaling:DescribeAutoScalingGroups", Resource = "*" }],
    length(local.groups) == 0 ? [] : [{
      Sid      = "SteerPools"
      Effect   = "Allow"
      Action   = ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"]
      Resource = local.groups
    }],
  )
}

module "user_data" {
  source  = "../user_data"
  bucket  = var.fleet.artifacts.bucket
  release = var.fleet.artifacts.release

  settings = merge(var.settings, {
    MILLRACE_ROLE     = "coordinator"
    AWS_REGION        = var.fleet.network.region
    MILLRACE_OBJECTS  = var.fleet.artifacts.location
    NATS_URL          = var.nats_url
    MILLRACE_SECRET   = module.role.secret_id
    MILLRACE_SCALE    = base64encode(local.scale)
    MILLRACE_REPLICAS = var.replicas
  })
}

module "template" {
  source             = "../launch_template"
  name               = local.name
  image_id           = var.fleet.image_id
  root_device        = var.fleet.root_device
  instance_type      = var.instance_type
  profile            = module.role.profile
  user_data          = module.user_data.script
  security_group_ids = [var.fleet.network.member_group_id]
  disk_gib           = 32
  tags               = { "millrace:fleet" = var.fleet.name, "millrace:pool" = "coordinator" }
}

resource "aws_autoscaling_group" "this" {
  name                = local.name
  min_size            = 2
  max_size            = 2
  desired_capacity    = 2
  vpc_zone_identifier = var.fleet.network.subnet_ids
  metrics_granularity = "1Minute"
  enabled_metrics     = ["GroupInServiceInstances"]

  launch_template {
    id      = module.template.id
    version = module.template.version
  }

  # Replaced one after the other by a new release: the standby first takes over.
  instance_refresh {
    strategy = "Rolling"
    preferences { min_healthy_percentage = 50 }
  }

  dynamic "tag" {
    for_each = { Name = local.name, "millrace:fleet" = var.fleet.name, "millrace:pool" = "coordinator" }
    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }
}
