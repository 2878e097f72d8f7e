mock_provider "aws" { source = "./mocks" }

variables {
  fleet = {
    name     = "lake"
    auth     = "./auth"
    image_id = "ami-0123456789abcdef0"
    network  = { region = "us-east-1", vpc_id = "vpc-0", subnet_cidrs = ["10.64.0.0/18", "10.64.64.0/18", "10.64.128.0/18"], zones = ["us-east-1a", "us-east-1b", "us-east-1c"], subnet_ids = ["subnet-0", "subnet-1", "subnet-2"], member_group_id = "sg-0" }
    artifacts = {
      arn      = "arn:aws:s3:::millrace-bucket"
      bucket   = "millrace-bucket"
      prefix   = "objects"
      location = "s3://millrace-bucket/objects"
      release  = "3f786850e387550fdab836ed7e6dc881de23001b3f786850e387550fdab836ed"
    }
  }
}

run "addresses_are_known_before_anything_is_made" {
  module { source = "../modules/nats" }
  command = plan

  assert {
    condition     = output.url == "tls://10.64.0.10:4222,tls://10.64.64.10:4222,tls://10.64.128.10:4222"
    error_message = "certificates name these"
  }
  assert {
    condition = (jsondecode(output.context).url == output.url && jsondecode(output.context).inbox_prefix == "_INBOX_submitter"
    && endswith(jsondecode(output.context).nkey, "/auth/keys/submitter.nk") && endswith(jsondecode(output.context).ca, "/auth/tls/ca.pem"))
    error_message = "the context of the `nats` command"
  }
}

run "three_nodes_in_three_zones" {
  module { source = "../modules/nats" }

  assert {
    condition     = aws_ebs_volume.data[*].availability_zone == ["us-east-1a", "us-east-1b", "us-east-1c"] && alltrue(aws_ebs_volume.data[*].encrypted)
    error_message = "a volume in each zone, encrypted"
  }
  assert {
    condition     = [for eni in aws_network_interface.node : one(eni.private_ips)] == ["10.64.0.10", "10.64.64.10", "10.64.128.10"]
    error_message = "the addresses are fixed"
  }
  assert {
    condition = alltrue([
      for node in aws_instance.node :
      node.metadata_options[0].http_tokens == "required" && node.metadata_options[0].http_put_response_hop_limit == 1
      && node.root_block_device[0].encrypted
    ])
    error_message = "IMDSv2 alone, encrypted"
  }
  assert {
    condition     = [for rule in aws_vpc_security_group_ingress_rule.client : rule.cidr_ipv4] == []
    error_message = "nobody from outside by default"
  }
  assert {
    condition     = length(aws_dlm_lifecycle_policy.this) == 1
    error_message = "snapshots by default"
  }
  assert {
    condition = alltrue([
      for index, data in module.user_data : strcontains(data.script, "MILLRACE_NODE=${index}\n")
      && strcontains(data.script, "MILLRACE_PEERS=10.64.0.10,10.64.64.10,10.64.128.10\n")
      && strcontains(data.script, "MILLRACE_DATA_DEVICE=/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol0123456789abcdef0\n")
    ])
    error_message = "each node knows itself, its peers and its disk"
  }
  assert {
    condition     = alltrue([for data in module.user_data : !strcontains(data.script, "placeholder")])
    error_message = "user data has a secret"
  }
}

run "a_vpn_reaches_the_servers" {
  module { source = "../modules/nats" }
  variables {
    client_cidrs = ["10.8.0.0/16"]
    snapshots    = null
  }

  assert {
    condition     = aws_vpc_security_group_ingress_rule.client["10.8.0.0/16"].from_port == 4222 && length(aws_iam_role.snapshots) == 0
    error_message = "port 4222 for the VPN, and no snapshots"
  }
}

run "refuses_the_whole_internet" {
  module { source = "../modules/nats" }
  command = plan
  variables { client_cidrs = ["0.0.0.0/0"] }
  expect_failures = [var.client_cidrs]
}

run "refuses_a_tiny_disk" {
  module { source = "../modules/nats" }
  command = plan
  variables { data_gib = 1 }
  expect_failures = [var.data_gib]
}

run "refuses_snapshots_every_five_hours" {
  module { source = "../modules/nats" }
  command = plan
  variables { snapshots = { hours = 5 } }
  expect_failures = [var.snapshots]
}

run "refuses_a_folder_without_keys" {
  module { source = "../modules/nats" }
  command = plan
  variables {
    fleet = {
      name     = "lake"
      auth     = "./nowhere"
      image_id = "ami-0123456789abcdef0"
      network  = { region = "us-east-1", vpc_id = "vpc-0", subnet_cidrs = ["10.64.0.0/18", "10.64.64.0/18", "10.64.128.0/18"], zones = ["us-east-1a", "us-east-1b", "us-east-1c"], subnet_ids = ["subnet-0", "subnet-1", "subnet-2"], member_group_id = "sg-0" }
      artifacts = {
        arn      = "arn:aws:s3:::millrace-bucket"
        bucket   = "millrace-bucket"
        prefix   = "objects"
        location = "s3://millrace-bucket/objects"
        release  = "3f786850e387550fdab836ed7e6dc881de23001b3f786850e387550fdab836ed"
      }
    }
  }
  expect_failures = [var.fleet]
}
