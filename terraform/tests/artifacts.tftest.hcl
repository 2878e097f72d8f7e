mock_provider "aws" { source = "./mocks" }

variables {
  name    = "lake"
  release = "3f786850e387550fdab836ed7e6dc881de23001b3f786850e387550fdab836ed"
}

run "the_bucket_is_closed" {
  module { source = "../modules/artifacts" }

  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.this.block_public_acls, aws_s3_bucket_public_access_block.this.block_public_policy,
      aws_s3_bucket_public_access_block.this.ignore_public_acls, aws_s3_bucket_public_access_block.this.restrict_public_buckets,
    ])
    error_message = "all four blocks of public access"
  }
  assert {
    condition     = aws_s3_bucket_versioning.this.versioning_configuration[0].status == "Enabled"
    error_message = "an overwritten object can be fetched back"
  }
  assert {
    condition     = !aws_s3_bucket.this.force_destroy
    error_message = "weights do not go by default"
  }
  assert {
    condition = [
      for s in jsondecode(aws_s3_bucket_policy.this.policy).Statement : s if s.Sid == "TlsOnly"
      ] == [{
        Sid       = "TlsOnly", Effect = "Deny", Principal = "*", Action = "s3:*"
        Resource  = ["arn:aws:s3:::millrace-bucket", "arn:aws:s3:::millrace-bucket/*"]
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
    error_message = "without TLS nothing is answered"
  }
  assert {
    condition = [
      for s in jsondecode(aws_s3_bucket_policy.this.policy).Statement : s.Resource if s.Sid == "CommitsAreCreatedOnce"
    ] == [["arn:aws:s3:::millrace-bucket/objects/runs/*/weights/*", "arn:aws:s3:::millrace-bucket/objects/log/*"]]
    error_message = "manifests and segments are created once"
  }
}

run "no_rule_expires_what_is_current" {
  module { source = "../modules/artifacts" }
  command = plan

  assert {
    condition = alltrue([
      for rule in aws_s3_bucket_lifecycle_configuration.this.rule :
      length(rule.transition) == 0 && alltrue([for e in rule.expiration : e.days == null || e.days == 0])
      && alltrue([for e in rule.expiration : e.date == null])
    ])
    error_message = "a rule moves or removes current objects: manifests and weights among them"
  }
  assert {
    condition = one([
      for rule in aws_s3_bucket_lifecycle_configuration.this.rule : rule.abort_incomplete_multipart_upload[0].days_after_initiation
      if rule.id == "abort-uploads"
    ]) == 1
    error_message = "an upload that nobody finishes goes after a day"
  }
}

run "a_release_of_a_file_is_uploaded_under_its_hash" {
  module { source = "../modules/artifacts" }
  command = plan
  variables { release = "./versions.tf" }

  assert {
    condition     = aws_s3_object.release[0].key == "releases/${filesha256("./versions.tf")}.tar.gz"
    error_message = "its key is its hash"
  }
}

run "a_release_in_the_bucket_is_not_uploaded" {
  module { source = "../modules/artifacts" }
  command = plan

  assert {
    condition     = length(aws_s3_object.release) == 0 && output.release == var.release
    error_message = "the hash is taken as it is"
  }
}

run "refuses_a_public_bucket" {
  module { source = "../modules/artifacts" }
  command = plan
  variables { public = true }
  expect_failures = [var.public]
}

run "refuses_upper_case_in_the_bucket_name" {
  module { source = "../modules/artifacts" }
  command = plan
  variables { bucket = "Millrace" }
  expect_failures = [var.bucket]
}

run "refuses_dots_in_the_bucket_name" {
  module { source = "../modules/artifacts" }
  command = plan
  variables { bucket = "millrace.example.com" }
  expect_failures = [var.bucket]
}

run "refuses_a_short_bucket_name" {
  module { source = "../modules/artifacts" }
  command = plan
  variables { bucket = "ab" }
  expect_failures = [var.bucket]
}

run "refuses_a_reserved_bucket_name" {
  module { source = "../modules/artifacts" }
  command = plan
  variables { bucket = "millrace-s3alias" }
  expect_failures = [var.bucket]
}

run "refuses_a_short_hash" {
  module { source = "../modules/artifacts" }
  command = plan
  variables { release = "3f786850e387550fdab836ed7e6dc881de23001b" }
  expect_failures = [var.release]
}
