# Three nats-servers, one in each zone, in one cluster. Address and data volume of a node outlive
# its instance, so a node is replaced alone:
#
#     terraform apply -replace='module.nats.aws_instance.node[0]'

locals {
  name      = "${var.fleet.name}-nats"
  auth      = var.fleet.auth
  addresses = [for cidr in var.fleet.network.subnet_cidrs : cidrhost(cidr, 10)]
  # A parameter of Systems Manager is looked up here: an instance of its own cannot name one.
  parameter = trimprefix(var.fleet.image_id, "resolve:ssm:")
  looked_up = local.parameter != var.fleet.image_id
}

data "aws_ssm_parameter" "image" {
  count = local.looked_up ? 1 : 0
  name  = local.parameter
}

module "role" {
  source          = "../instance_role"
  name            = local.name
  duties          = ["nats"]
  artifacts       = var.fleet.artifacts
  session_manager = var.session_manager

  secret_files = {
    "nats-server.conf" = file("${local.auth}/nats-server.conf")
    "server.pem"       = file("${local.auth}/tls/server.pem")
    "server.key"       = file("${local.auth}/tls/server.key")
    "ca.pem"           = file("${local.auth}/tls/ca.pem")
  }
  # The configuration has the public half of every key, so it changes with them.
  secret_version = parseint(substr(sha256(join("", [
    for name in ["nats-server.conf", "tls/server.pem", "tls/ca.pem"] : file("${local.auth}/${name}")
  ])), 0, 8), 16)

  statements = [{
    Sid       = "ReportDisk"
    Effect    = "Allow"
    Action    = "cloudwatch:PutMetricData"
    Resource  = "*"
    Condition = { StringEquals = { "cloudwatch:namespace" = "Millrace" } }
  }]
}

# ---- who reaches it --------------------------------------------------------

resource "aws_security_group" "this" {
  name        = local.name
  description = "nats-servers of ${var.fleet.name}"
  vpc_id      = var.fleet.network.vpc_id
  tags        = { Name = local.name }
}

resource "aws_vpc_security_group_ingress_rule" "member" {
  security_group_id            = aws_security_group.this.id
  description                  = "Clients: the fleet's instances"
  referenced_security_group_id = var.fleet.network.member_group_id
  ip_protocol                  = "tcp"
  from_port                    = 4222
  to_port                      = 4222
}

resource "aws_vpc_security_group_ingress_rule" "client" {
  for_each          = var.client_cidrs
  security_group_id = aws_security_group.this.id
  description       = "Clients from outside"
  cidr_ipv4         = each.key
  ip_protocol       = "tcp"
  from_port         = 4222
  to_port           = 4222
}

resource "aws_vpc_security_group_ingress_rule" "route" {
  security_group_id            = aws_security_group.this.id
  description                  = "The cluster's routes"
  referenced_security_group_id = aws_security_group.this.id
  ip_protocol                  = "tcp"
  from_port                    = 6222
  to_port                      = 6222
}

resource "aws_vpc_security_group_egress_rule" "route" {
  security_group_id            = aws_security_group.this.id
  description                  = "The cluster's routes"
  referenced_security_group_id = aws_security_group.this.id
  ip_protocol                  = "tcp"
  from_port                    = 6222
  to_port                      = 6222
}

# ---- the nodes -------------------------------------------------------------

resource "aws_network_interface" "node" {
  count           = 3
  subnet_id       = var.fleet.network.subnet_ids[count.index]
  private_ips     = [local.addresses[count.index]]
  security_groups = [var.fleet.network.member_group_id, aws_security_group.this.id]
  description     = "${local.name}-${count.index}"
  tags            = { Name = "${local.name}-${count.index}" }
}

resource "aws_ebs_volume" "data" {
  count             = 3
  availability_zone = var.fleet.network.zones[count.index]
  size              = var.data_gib
  type              = "gp3"
  encrypted         = true
  tags              = { Name = "${local.name}-${count.index}", "millrace:data" = local.name }
}

module "user_data" {
  count   = 3
  source  = "../user_data"
  bucket  = var.fleet.artifacts.bucket
  release = var.fleet.artifacts.release
  extra   = file("${path.module}/disk_report.sh")

  settings = {
    MILLRACE_ROLE    = "nats"
    MILLRACE_FLEET   = var.fleet.name
    AWS_REGION       = var.fleet.network.region
    MILLRACE_OBJECTS = var.fleet.artifacts.location
    MILLRACE_SECRET  = module.role.secret_id
    MILLRACE_NODE    = count.index
    MILLRACE_ADDRESS = local.addresses[count.index]
    MILLRACE_PEERS   = join(",", local.addresses)
    # As udev names the volume on machines of the Nitro system.
    MILLRACE_DATA_DEVICE = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_${replace(aws_ebs_volume.data[count.index].id, "-", "")}"
  }
}

resource "aws_instance" "node" {
  count                = 3
  ami                  = local.looked_up ? data.aws_ssm_parameter.image[0].insecure_value : var.fleet.image_id
  instance_type        = var.instance_type
  iam_instance_profile = module.role.profile
  user_data            = module.user_data[count.index].script
  ebs_optimized        = true

  # Provider 6 prefers another argument, which 5 lacks.
  network_interface {
    device_index         = 0
    network_interface_id = aws_network_interface.node[count.index].id
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "enabled"
  }

  root_block_device {
    encrypted   = true
    volume_type = "gp3"
    volume_size = 32
  }

  tags = { Name = "${local.name}-${count.index}" }

  # A new image or release must not stop all three at once. Replace them one by one.
  lifecycle { ignore_changes = [ami, user_data] }
}

resource "aws_volume_attachment" "data" {
  count                          = 3
  device_name                    = "/dev/sdf"
  volume_id                      = aws_ebs_volume.data[count.index].id
  instance_id                    = aws_instance.node[count.index].id
  stop_instance_before_detaching = true
}

# ---- snapshots -------------------------------------------------------------

data "aws_partition" "this" {}

resource "aws_iam_role" "snapshots" {
  count       = var.snapshots == null ? 0 : 1
  name        = "${local.name}-snapshots"
  description = "Snapshots of the data volumes of ${local.name}"

  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "dlm.amazonaws.com" } }]
  })
}

resource "aws_iam_role_policy" "snapshots" {
  count = var.snapshots == null ? 0 : 1
  name  = "snapshots"
  role  = aws_iam_role.snapshots[0].id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = "ec2:CreateSnapshot"
        Resource = [for volume in aws_ebs_volume.data : volume.arn]
      },
      {
        Effect   = "Allow"
        Action   = "ec2:CreateSnapshot"
        Resource = "arn:${data.aws_partition.this.partition}:ec2:*::snapshot/*"
      },
      {
        Effect    = "Allow"
        Action    = "ec2:DeleteSnapshot"
        Resource  = "arn:${data.aws_partition.this.partition}:ec2:*::snapshot/*"
        Condition = { StringEquals = { "ec2:ResourceTag/millrace:data" = local.name } }
      },
      {
        Effect    = "Allow"
        Action    = "ec2:CreateTags"
        Resource  = "arn:${data.aws_partition.this.partition}:ec2:*::snapshot/*"
        Condition = { StringEquals = { "ec2:CreateAction" = "CreateSnapshot" } }
      },
      { Effect = "Allow", Action = ["ec2:DescribeVolumes", "ec2:DescribeSnapshots"], Resource = "*" },
    ]
  })
}

resource "aws_dlm_lifecycle_policy" "this" {
  count              = var.snapshots == null ? 0 : 1
  description        = "Data volumes of ${local.name}"
  execution_role_arn = aws_iam_role.snapshots[0].arn

  policy_details {
    resource_types = ["VOLUME"]
    target_tags    = { "millrace:data" = local.name }

    schedule {
      name      = "every ${var.snapshots.hours} hours"
      copy_tags = true
      create_rule { interval = var.snapshots.hours }
      retain_rule { count = var.snapshots.keep }
    }
  }

  depends_on = [aws_iam_role_policy.snapshots]
}
