# How every instance of a group starts: IMDSv2 alone, no public address, encrypted disk.

locals {
  tags = merge({ Name = var.name }, var.tags)
}

resource "aws_launch_template" "this" {
  name                   = var.name
  description            = "Instances of ${var.name}"
  image_id               = var.image_id
  instance_type          = var.instance_type
  user_data              = base64encode(var.user_data)
  update_default_version = true

  iam_instance_profile { name = var.profile }

  # A process in a container is a hop further: it gets no credentials of the instance.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = var.http_tokens
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "enabled"
  }

  monitoring { enabled = true }

  block_device_mappings {
    device_name = var.root_device
    ebs {
      encrypted             = true
      volume_type           = "gp3"
      volume_size           = var.disk_gib
      delete_on_termination = true
    }
  }

  dynamic "network_interfaces" {
    for_each = range(max(var.efa, 1))
    content {
      device_index       = network_interfaces.value == 0 ? 0 : 1
      network_card_index = network_interfaces.value
      interface_type     = var.efa == 0 ? null : network_interfaces.value == 0 ? "efa" : "efa-only"
      security_groups    = var.security_group_ids
      # EC2 refuses to hear of it with several interfaces; then there is none either.
      associate_public_ip_address = var.efa > 1 ? null : false
      delete_on_termination       = true
    }
  }

  dynamic "placement" {
    for_each = var.placement_group == null ? [] : [var.placement_group]
    content { group_name = placement.value }
  }

  dynamic "capacity_reservation_specification" {
    for_each = var.capacity_reservation_id == null ? [] : [var.capacity_reservation_id]
    content {
      capacity_reservation_target { capacity_reservation_id = capacity_reservation_specification.value }
    }
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume"])
    content {
      resource_type = tag_specifications.value
      tags          = local.tags
    }
  }
}
