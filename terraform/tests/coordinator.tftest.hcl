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
  nats_url = "tls://10.64.0.10:4222"
  pools = [{
    name       = "gpu"
    stages     = ["generate"]
    min        = 0
    max        = 4
    step       = 2
    cooldown_s = 60
    cost       = 1.5
    group      = "lake-gpu"

    workers_per_machine = 2
  }]
}

run "it_steers_its_pools_alone" {
  module { source = "../modules/coordinator" }

  assert {
    condition = one([
      for s in jsondecode(module.role.policy).Statement : s if s.Sid == "SteerPools"
      ]) == {
      Sid      = "SteerPools", Effect = "Allow"
      Action   = ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"]
      Resource = ["arn:aws:autoscaling:us-east-1:*:autoScalingGroup:*:autoScalingGroupName/lake-gpu"]
    }
    error_message = "other groups are not its own"
  }
  assert {
    condition     = aws_autoscaling_group.this.min_size == 2 && length(aws_autoscaling_group.this.vpc_zone_identifier) == 3
    error_message = "two, across zones"
  }
  assert {
    condition     = length(regexall("MILLRACE_SCALE=[A-Za-z0-9+/=]+\n", module.user_data.script)) == 1
    error_message = "the scaling file travels in user data"
  }
  assert {
    condition     = strcontains(module.user_data.script, "MILLRACE_SCALE=${base64encode(output.scale)}\n")
    error_message = "it is the one shown"
  }
  assert {
    condition     = output.scale == <<-TOML
      interval_s = 5
      dry_run = false

      [[pool]]
      name = "gpu"
      stages = ["generate"]
      min = 0
      max = 4
      step = 2
      workers_per_machine = 2
      cooldown_s = 60
      cost = 1.5
      target = { kind = "aws", group = "lake-gpu" }
    TOML
    error_message = "scale.toml as the coordinator reads it"
  }
}

run "it_takes_settings_but_keeps_its_role" {
  module { source = "../modules/coordinator" }
  variables { settings = { OTEL_EXPORTER_OTLP_ENDPOINT = "http://10.8.4.7:4318", MILLRACE_ROLE = "nats" } }

  assert {
    condition = (strcontains(module.user_data.script, "\nOTEL_EXPORTER_OTLP_ENDPOINT=http://10.8.4.7:4318\n")
    && strcontains(module.user_data.script, "\nMILLRACE_ROLE=coordinator\n"))
    error_message = "a receiver of traces"
  }
}

run "refuses_two_replicas" {
  module { source = "../modules/coordinator" }
  command = plan
  variables { replicas = 2 }
  expect_failures = [var.replicas]
}

run "refuses_five_replicas_on_three_servers" {
  module { source = "../modules/coordinator" }
  command = plan
  variables { replicas = 5 }
  expect_failures = [var.replicas]
}

run "refuses_two_pools_of_one_name" {
  module { source = "../modules/coordinator" }
  command = plan
  variables {
    pools = [
      { name = "gpu", stages = ["generate"], min = 0, max = 1, step = 1, cooldown_s = 1, cost = 1, group = "lake-a" },
      { name = "gpu", stages = ["generate"], min = 0, max = 1, step = 1, cooldown_s = 1, cost = 1, group = "lake-b" },
    ]
  }
  expect_failures = [var.pools]
}
