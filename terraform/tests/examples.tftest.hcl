mock_provider "aws" { source = "./mocks" }

variables {
  auth    = "./auth"
  release = "./versions.tf"
}

run "minimal" {
  module { source = "../examples/minimal" }

  assert {
    condition     = output.groups == { gpu = "millrace-gpu", cpu = "millrace-cpu", coordinator = "millrace-coordinator" }
    error_message = "two pools and the coordinators"
  }
  assert {
    condition     = jsondecode(output.nats_context).url == "tls://10.64.0.10:4222,tls://10.64.64.10:4222,tls://10.64.128.10:4222"
    error_message = "the next command is `nats --context millrace …`"
  }
}

run "production" {
  module { source = "../examples/production" }
  variables {
    bucket                  = "lake-millrace-artifacts"
    capacity_reservation_id = "cr-0123456789abcdef0"
    email                   = "ops@example.com"
    client_cidrs            = ["10.8.0.0/16"]
  }

  assert {
    condition     = length(output.groups) == 5
    error_message = "four pools and the coordinators"
  }
}
