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
  nats_url       = "tls://10.64.0.10:4222,tls://10.64.64.10:4222"
  name           = "gpu"
  stages         = ["generate:64"]
  instance_types = ["g6.xlarge", "g5.xlarge"]
  max            = 4
}

run "desired_within_bounds" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables {
    min     = 1
    desired = 3
    spot    = false
  }

  assert {
    condition     = aws_autoscaling_group.this.desired_capacity == 3 && !aws_autoscaling_group.this.capacity_rebalance
    error_message = "three on demand"
  }
}

run "the_hook_is_in_the_group" {
  module { source = "../modules/worker_pool" }

  assert {
    condition = [for h in aws_autoscaling_group.this.initial_lifecycle_hook : [h.name, h.lifecycle_transition, h.heartbeat_timeout, h.default_result]] == [
      ["drain", "autoscaling:EC2_INSTANCE_TERMINATING", 300, "CONTINUE"]
    ]
    error_message = "instances leave by the hook drain"
  }
  assert {
    condition = (aws_autoscaling_group.this.min_size == 0 && aws_autoscaling_group.this.max_size == 4
    && aws_autoscaling_group.this.desired_capacity == 0 && aws_autoscaling_group.this.capacity_rebalance)
    error_message = "a spot pool that starts empty"
  }
  assert {
    condition     = contains(aws_autoscaling_group.this.suspended_processes, "AZRebalance")
    error_message = "the autoscaler says which instance goes"
  }
  assert {
    condition     = aws_autoscaling_group.this.termination_policies == tolist(["NewestInstance"])
    error_message = "an instance that still starts goes before one that works"
  }
  assert {
    condition = (aws_autoscaling_group.this.mixed_instances_policy[0].instances_distribution[0].on_demand_percentage_above_base_capacity == 0
    && [for o in aws_autoscaling_group.this.mixed_instances_policy[0].launch_template[0].override : o.instance_type] == ["g6.xlarge", "g5.xlarge"])
    error_message = "spot, of two types"
  }
}

run "instances_that_train_together_reach_each_other_alone" {
  module { source = "../modules/worker_pool" }
  variables { stages = ["generate", "train_shard", "publish_weights"] }

  assert {
    condition = (aws_vpc_security_group_ingress_rule.gang[0].referenced_security_group_id == aws_security_group.gang[0].id
      && aws_vpc_security_group_egress_rule.gang[0].referenced_security_group_id == aws_security_group.gang[0].id
      && aws_vpc_security_group_ingress_rule.gang[0].ip_protocol == "-1"
      && aws_vpc_security_group_egress_rule.gang[0].ip_protocol == "-1"
    && aws_vpc_security_group_ingress_rule.gang[0].cidr_ipv4 == null)
    error_message = "NCCL and Gloo choose their ports"
  }
  assert {
    condition     = contains(module.template.security_group_ids, output.gang_group_id)
    error_message = "its instances are members"
  }
}

run "pools_that_do_not_train_have_no_open_ports" {
  module { source = "../modules/worker_pool" }

  assert {
    condition     = length(aws_vpc_security_group_ingress_rule.gang) == 0 && output.gang_group_id == null
    error_message = "nothing connects to a worker that generates"
  }
}

run "one_instance_is_no_gang" {
  module { source = "../modules/worker_pool" }
  variables {
    stages = ["generate", "train_shard", "publish_weights"]
    max    = 1
  }

  assert {
    condition     = output.gang_group_id == null
    error_message = "the workers of one instance reach each other anyway"
  }
}

run "what_the_autoscaler_decided_stays" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables { desired = 3 }

  assert {
    condition     = aws_autoscaling_group.this.desired_capacity == 0
    error_message = "a later apply sets the number of instances"
  }
}

run "the_autoscaler_counts_the_workers_of_its_instances" {
  module { source = "../modules/worker_pool" }
  variables {
    min                 = 1
    cost                = 10
    workers_per_machine = 4
  }

  assert {
    condition     = aws_autoscaling_group.this.min_size == 1 && aws_autoscaling_group.this.max_size == 4
    error_message = "the group counts instances"
  }
  assert {
    condition = (output.scaling.min == 4 && output.scaling.max == 16 && output.scaling.step == 16
    && output.scaling.workers_per_machine == 4 && output.scaling.cost == 2.5)
    error_message = "the autoscaler counts workers"
  }
  assert {
    condition     = strcontains(module.user_data.script, "\nMILLRACE_PROCESSES=4\n")
    error_message = "an instance runs as many as the autoscaler expects"
  }
}

run "refuses_instances_without_workers" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables { workers_per_machine = 0 }
  expect_failures = [var.workers_per_machine]
}

run "refuses_desired_above_max" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables { desired = 5 }
  expect_failures = [var.desired]
}

run "refuses_desired_below_min" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables {
    min     = 2
    desired = 1
  }
  expect_failures = [var.desired]
}

run "refuses_min_above_max" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables { min = 5 }
  expect_failures = [var.min]
}

run "refuses_a_pool_that_may_have_nothing" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables { max = 0 }
  expect_failures = [var.max]
}

run "refuses_a_spot_pool_without_hook" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables { hook = { name = "" } }
  expect_failures = [var.hook]
}

run "refuses_a_grace_that_outlasts_the_hook" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables {
    grace_s = 90
    hook    = { heartbeat_s = 60 }
  }
  expect_failures = [var.grace_s]
}

run "refuses_a_grace_that_outlasts_a_spot_notice" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables { grace_s = 150 }
  expect_failures = [var.grace_s]
}

run "takes_the_same_grace_on_demand" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables {
    grace_s = 150
    spot    = false
  }
}

run "refuses_imds_version_1" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables { http_tokens = "optional" }
  expect_failures = [var.http_tokens]
}

run "refuses_stages_without_a_key" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables { stages = ["generate", "reward"] }
  expect_failures = [var.stages]
}

run "refuses_an_unknown_stage" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables { stages = ["sample"] }
  expect_failures = [var.stages]
}

run "refuses_a_queue_without_tls" {
  module { source = "../modules/worker_pool" }
  command = plan
  variables { nats_url = "nats://10.64.0.10:4222" }
  expect_failures = [var.nats_url]
}
