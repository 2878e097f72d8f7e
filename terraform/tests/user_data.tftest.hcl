variables {
  bucket   = "millrace-bucket"
  release  = "3f786850e387550fdab836ed7e6dc881de23001b3f786850e387550fdab836ed"
  settings = { MILLRACE_ROLE = "worker", AWS_REGION = "us-east-1" }
}

run "one_line_for_each_setting" {
  module { source = "../modules/user_data" }

  assert {
    condition     = strcontains(output.script, "\nAWS_REGION=us-east-1\nMILLRACE_ROLE=worker\nSETTINGS\n")
    error_message = "lines of instance.env"
  }
}

run "refuses_a_value_that_would_run" {
  module { source = "../modules/user_data" }
  command = plan
  variables { settings = { MILLRACE_EXEC = "$(id)" } }
  expect_failures = [var.settings]
}

run "refuses_a_second_line" {
  module { source = "../modules/user_data" }
  command = plan
  variables { settings = { MILLRACE_ROLE = "worker\nMILLRACE_ROLE=nats" } }
  expect_failures = [var.settings]
}

run "refuses_a_name_that_is_none" {
  module { source = "../modules/user_data" }
  command = plan
  variables { settings = { "millrace role" = "worker" } }
  expect_failures = [var.settings]
}

run "refuses_more_than_ec2_takes" {
  module { source = "../modules/user_data" }
  command = plan
  variables { settings = { MILLRACE_SCALE = join("", [for n in range(1000) : "0123456789abcdef"]) } }
  expect_failures = [output.script]
}

run "refuses_a_hash_that_is_none" {
  module { source = "../modules/user_data" }
  command = plan
  variables { release = "latest" }
  expect_failures = [var.release]
}
