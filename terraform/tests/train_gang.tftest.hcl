mock_provider "aws" { source = "./mocks" }

variables {
  fleet = {
    name     = "lake"
    auth     = "./auth"
    image_id = "ami-0123456789abcdef0"
    network  = { region = "us-east-1", vpc_id = "vpc-0", subnet_ids = ["subnet-0", "subnet-1", "subnet-2"], member_group_id = "sg-0" }
    artifacts = {
      arn      = "arn:aws:s3:::millrace-bucket"
      bucket   = "millrace-bucket"
      prefix   = "objects"
      location = "s3://millrace-bucket/objects"
      release  = "3f786850e387550fdab836ed7e6dc881de23001b3f786850e387550fdab836ed"
    }
  }
  nats_url      = "tls://10.64.0.10:4222"
  instance_type = "p5.48xlarge"
  size          = 2
}

run "members_are_close_and_alone" {
  module { source = "../modules/train_gang" }

  assert {
    condition     = aws_placement_group.this.strategy == "cluster"
    error_message = "close together"
  }
  assert {
    condition     = module.pool.gang_group_id != null
    error_message = "members reach each other: see worker_pool"
  }
  assert {
    condition     = output.scaling.max == 2 && output.scaling.stages == ["train_shard", "publish_weights"]
    error_message = "the autoscaler knows it"
  }
}

run "sixteen_ranks_on_eight_gpus_each_are_two_instances" {
  module { source = "../modules/train_gang" }
  variables {
    size                = 16
    workers_per_machine = 8
  }

  assert {
    condition     = module.pool.scaling.max == 16 && module.pool.scaling.step == 16 && module.pool.scaling.workers_per_machine == 8
    error_message = "the autoscaler counts ranks"
  }
  assert {
    condition     = local.instances == 2
    error_message = "the group counts instances"
  }
}

run "refuses_spot_in_a_reservation" {
  module { source = "../modules/train_gang" }
  command = plan
  variables {
    spot                    = true
    grace_s                 = 100
    capacity_reservation_id = "cr-0123456789abcdef0"
  }
  expect_failures = [var.capacity_reservation_id]
}

run "refuses_what_is_no_reservation" {
  module { source = "../modules/train_gang" }
  command = plan
  variables { capacity_reservation_id = "reservation" }
  expect_failures = [var.capacity_reservation_id]
}

run "refuses_an_empty_gang" {
  module { source = "../modules/train_gang" }
  command = plan
  variables { size = 0 }
  expect_failures = [var.size]
}
