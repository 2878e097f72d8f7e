mock_provider "aws" { source = "./mocks" }

variables {
  name              = "lake"
  groups            = { gpu = "lake-gpu", cpu = "lake-cpu" }
  coordinator_group = "lake-coordinator"
  nats_instance_ids = ["i-0", "i-1", "i-2"]
}

run "alarms_for_every_part" {
  module { source = "../modules/observability" }

  assert {
    condition = join(" ", output.alarms) == join(" ", [
      "lake-coordinator", "lake-cpu-draining", "lake-cpu-missing", "lake-gpu-draining", "lake-gpu-missing",
      "lake-nats-0", "lake-nats-0-disk", "lake-nats-1", "lake-nats-1-disk", "lake-nats-2", "lake-nats-2-disk",
    ])
    error_message = "pools, coordinators, nats-servers and their disks"
  }
  assert {
    condition     = output.topic_arn == null && length(coalesce(aws_cloudwatch_metric_alarm.coordinator.alarm_actions, [])) == 0
    error_message = "nobody is told unless asked for"
  }
}

run "a_topic_is_told" {
  module { source = "../modules/observability" }
  variables {
    email     = "ops@example.com"
    flow_logs = { vpc_id = "vpc-0" }
  }

  assert {
    condition     = aws_cloudwatch_metric_alarm.disk["1"].alarm_actions == toset([aws_sns_topic.this[0].arn])
    error_message = "alarms go to the topic"
  }
  assert {
    condition     = aws_flow_log.this[0].traffic_type == "REJECT" && aws_cloudwatch_log_group.flow[0].retention_in_days == 30
    error_message = "rejected connections are kept for 30 days"
  }
  assert {
    condition = contains(flatten([
      for s in jsondecode(aws_iam_role_policy.flow[0].policy).Statement : s.Action if s.Resource == "*"
    ]), "logs:DescribeLogGroups")
    error_message = "the service of flow logs looks whether the group exists"
  }
}

run "refuses_a_word_for_an_address" {
  module { source = "../modules/observability" }
  command = plan
  variables { email = "ops" }
  expect_failures = [var.email]
}

run "refuses_an_impatient_alarm" {
  module { source = "../modules/observability" }
  command = plan
  variables { missing_minutes = 1 }
  expect_failures = [var.missing_minutes]
}
