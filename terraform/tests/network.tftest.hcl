mock_provider "aws" { source = "./mocks" }

variables {
  name = "lake"
}

run "three_private_subnets_and_no_public_address" {
  module { source = "../modules/network" }

  assert {
    condition     = aws_subnet.private[*].cidr_block == ["10.64.0.0/18", "10.64.64.0/18", "10.64.128.0/18"]
    error_message = "the addresses of the nats-servers follow from these, and are in certificates"
  }
  assert {
    condition     = aws_subnet.private[*].availability_zone == ["us-east-1a", "us-east-1b", "us-east-1c"]
    error_message = "one subnet in each of the first three zones"
  }
  assert {
    condition     = !anytrue(concat(aws_subnet.private[*].map_public_ip_on_launch, aws_subnet.public[*].map_public_ip_on_launch))
    error_message = "a subnet gives public addresses"
  }
  assert {
    condition     = length(aws_route.out) == 3 && length(aws_nat_gateway.this) == 1 && length(aws_vpc_endpoint.interface) == 0
    error_message = "the way out is one NAT gateway"
  }
}

run "without_nat_services_are_reached_inside" {
  module { source = "../modules/network" }
  variables { nat = "none" }

  assert {
    condition     = toset(keys(aws_vpc_endpoint.interface)) == toset(["autoscaling", "monitoring", "secretsmanager"])
    error_message = "instances need these"
  }
  assert {
    condition     = length(aws_internet_gateway.this) == 0 && length(aws_subnet.public) == 0 && length(aws_eip.nat) == 0
    error_message = "there is no way out"
  }
  assert {
    condition     = !contains(keys(aws_vpc_security_group_egress_rule.member), "http")
    error_message = "plain HTTP has no use here"
  }
}

run "without_nat_session_manager_has_endpoints" {
  module { source = "../modules/network" }
  variables {
    nat             = "none"
    session_manager = true
  }

  assert {
    condition = (toset(keys(aws_vpc_endpoint.interface))
    == toset(["autoscaling", "monitoring", "secretsmanager", "ssm", "ssmmessages"]))
    error_message = "the agent of Session Manager calls these"
  }
}

run "nobody_reads_metrics_unless_named" {
  module { source = "../modules/network" }

  assert {
    condition = (length(aws_vpc_security_group_ingress_rule.monitoring) == 0
    && length(aws_vpc_security_group_egress_rule.traces) == 0)
    error_message = "instances take no connections"
  }
}

run "prometheus_and_a_receiver_of_traces" {
  module { source = "../modules/network" }
  variables {
    monitoring_cidrs = ["10.8.0.0/16"]
    traces           = { cidrs = ["10.8.4.0/24"] }
  }

  assert {
    condition = (aws_vpc_security_group_ingress_rule.monitoring["10.8.0.0/16"].from_port == 9090
      && aws_vpc_security_group_ingress_rule.monitoring["10.8.0.0/16"].to_port == 9105
    && aws_vpc_security_group_ingress_rule.monitoring["10.8.0.0/16"].security_group_id == aws_security_group.member.id)
    error_message = "the ports of a coordinator and of 16 workers"
  }
  assert {
    condition     = aws_vpc_security_group_egress_rule.traces["10.8.4.0/24"].to_port == 4318
    error_message = "OTLP over HTTP"
  }
}

run "refuses_metrics_for_everyone" {
  module { source = "../modules/network" }
  command = plan
  variables { monitoring_cidrs = ["0.0.0.0/0"] }
  expect_failures = [var.monitoring_cidrs]
}

run "refuses_metrics_for_a_name" {
  module { source = "../modules/network" }
  command = plan
  variables { monitoring_cidrs = ["prometheus"] }
  expect_failures = [var.monitoring_cidrs]
}

run "refuses_a_receiver_of_traces_without_addresses" {
  module { source = "../modules/network" }
  command = plan
  variables { traces = { cidrs = [] } }
  expect_failures = [var.traces]
}

run "refuses_a_port_that_is_none" {
  module { source = "../modules/network" }
  command = plan
  variables { traces = { cidrs = ["10.8.4.0/24"], port = 0 } }
  expect_failures = [var.traces]
}

run "nat_in_each_zone" {
  module { source = "../modules/network" }
  command = plan
  variables { nat = "per_zone" }

  assert {
    condition     = length(aws_nat_gateway.this) == 3 && length(distinct(aws_subnet.public[*].cidr_block)) == 3
    error_message = "three gateways, each in a subnet of its own"
  }
}

run "refuses_too_small_a_range" {
  module { source = "../modules/network" }
  command = plan
  variables { cidr = "10.64.0.0/25" }
  expect_failures = [var.cidr]
}

run "refuses_bits_behind_the_prefix" {
  module { source = "../modules/network" }
  command = plan
  variables { cidr = "10.64.0.1/16" }
  expect_failures = [var.cidr]
}

run "refuses_what_is_no_range" {
  module { source = "../modules/network" }
  command = plan
  variables { cidr = "fleet" }
  expect_failures = [var.cidr]
}

run "refuses_two_zones" {
  module { source = "../modules/network" }
  command = plan
  variables { zones = ["us-east-1a", "us-east-1a", "us-east-1b"] }
  expect_failures = [var.zones]
}

run "refuses_an_unknown_way_out" {
  module { source = "../modules/network" }
  command = plan
  variables { nat = "two" }
  expect_failures = [var.nat]
}
