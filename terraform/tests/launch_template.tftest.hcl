mock_provider "aws" { source = "./mocks" }

variables {
  name               = "lake-gpu"
  image_id           = "ami-0123456789abcdef0"
  instance_type      = "g6.xlarge"
  profile            = "lake-gpu"
  user_data          = "#!/bin/bash"
  security_group_ids = ["sg-0"]
}

run "imds_version_2_encrypted_disk_no_public_address" {
  module { source = "../modules/launch_template" }
  command = plan

  assert {
    condition = (aws_launch_template.this.metadata_options[0].http_tokens == "required"
      && aws_launch_template.this.metadata_options[0].http_put_response_hop_limit == 1
    && aws_launch_template.this.metadata_options[0].instance_metadata_tags == "enabled")
    error_message = "IMDSv2 alone, within the instance alone, with tags"
  }
  assert {
    condition     = aws_launch_template.this.block_device_mappings[0].ebs[0].encrypted == "true"
    error_message = "the disk is encrypted"
  }
  assert {
    condition     = [for i in aws_launch_template.this.network_interfaces : i.associate_public_ip_address] == ["false"]
    error_message = "no public address, whatever the subnet says"
  }
}

run "efa_has_an_interface_for_each_card" {
  module { source = "../modules/launch_template" }
  command = plan
  variables {
    efa                     = 4
    placement_group         = "lake-train"
    capacity_reservation_id = "cr-0123456789abcdef0"
  }

  assert {
    condition = ([for i in aws_launch_template.this.network_interfaces : i.interface_type] == ["efa", "efa-only", "efa-only", "efa-only"]
    && [for i in aws_launch_template.this.network_interfaces : i.network_card_index] == [0, 1, 2, 3])
    error_message = "the first carries IP too"
  }
  assert {
    condition     = aws_launch_template.this.placement[0].group_name == "lake-train"
    error_message = "close together"
  }
}

run "refuses_imds_version_1" {
  module { source = "../modules/launch_template" }
  command = plan
  variables { http_tokens = "optional" }
  expect_failures = [var.http_tokens]
}

run "refuses_what_is_no_image" {
  module { source = "../modules/launch_template" }
  command = plan
  variables { image_id = "ubuntu" }
  expect_failures = [var.image_id]
}

run "refuses_too_small_a_disk" {
  module { source = "../modules/launch_template" }
  command = plan
  variables { disk_gib = 8 }
  expect_failures = [var.disk_gib]
}
