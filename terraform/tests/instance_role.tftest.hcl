# The rights of each duty, whole: a path more is a failure, and so is one less.

mock_provider "aws" { source = "./mocks" }

variables {
  name           = "lake-x"
  secret_files   = { "user.nk" = "placeholder" }
  secret_version = 1
  artifacts = {
    arn    = "arn:aws:s3:::b"
    prefix = "objects"
  }
}

run "generate" {
  module { source = "../modules/instance_role" }
  variables { duties = ["generate"] }

  assert {
    condition = {
      for s in jsondecode(aws_iam_role_policy.this.policy).Statement : s.Sid => [s.Action, s.Resource]
      } == {
      ReadObjects  = [["s3:GetObject"], ["arn:aws:s3:::b/objects/log/*", "arn:aws:s3:::b/objects/runs/*/blobs/*", "arn:aws:s3:::b/objects/runs/*/weights/*"]]
      WriteObjects = [["s3:PutObject", "s3:AbortMultipartUpload"], ["arn:aws:s3:::b/objects/runs/*/blobs/*"]]
      ListObjects  = [["s3:ListBucket"], ["arn:aws:s3:::b"]]
      FetchRelease = [["s3:GetObject"], ["arn:aws:s3:::b/releases/*"]]
      ReadSecret   = [["secretsmanager:GetSecretValue"], ["arn:aws:secretsmanager:us-east-1:123456789012:secret:millrace-x-AbCdEf"]]
    }
    error_message = "a sampler reads weights and commits none"
  }
}

run "env_step" {
  module { source = "../modules/instance_role" }
  variables { duties = ["env_step"] }

  assert {
    condition = {
      for s in jsondecode(aws_iam_role_policy.this.policy).Statement : s.Sid => [s.Action, s.Resource]
      } == {
      ReadObjects  = [["s3:GetObject"], ["arn:aws:s3:::b/objects/images/layers/*", "arn:aws:s3:::b/objects/images/manifests/*", "arn:aws:s3:::b/objects/images/names/*", "arn:aws:s3:::b/objects/log/*", "arn:aws:s3:::b/objects/runs/*/blobs/*"]]
      WriteObjects = [["s3:PutObject", "s3:AbortMultipartUpload"], ["arn:aws:s3:::b/objects/runs/*/blobs/*"]]
      ListObjects  = [["s3:ListBucket"], ["arn:aws:s3:::b"]]
      FetchRelease = [["s3:GetObject"], ["arn:aws:s3:::b/releases/*"]]
      ReadSecret   = [["secretsmanager:GetSecretValue"], ["arn:aws:secretsmanager:us-east-1:123456789012:secret:millrace-x-AbCdEf"]]
    }
    error_message = "environments read images and see no weights"
  }
}

run "reward" {
  module { source = "../modules/instance_role" }
  variables { duties = ["reward"] }

  assert {
    condition = {
      for s in jsondecode(aws_iam_role_policy.this.policy).Statement : s.Sid => [s.Action, s.Resource]
      } == {
      ReadObjects  = [["s3:GetObject"], ["arn:aws:s3:::b/objects/log/*", "arn:aws:s3:::b/objects/runs/*/blobs/*"]]
      WriteObjects = [["s3:PutObject", "s3:AbortMultipartUpload"], ["arn:aws:s3:::b/objects/runs/*/blobs/*"]]
      ListObjects  = [["s3:ListBucket"], ["arn:aws:s3:::b"]]
      FetchRelease = [["s3:GetObject"], ["arn:aws:s3:::b/releases/*"]]
      ReadSecret   = [["secretsmanager:GetSecretValue"], ["arn:aws:secretsmanager:us-east-1:123456789012:secret:millrace-x-AbCdEf"]]
    }
    error_message = "rewards see no weights"
  }
}

run "train_shard" {
  module { source = "../modules/instance_role" }
  variables { duties = ["train_shard"] }

  assert {
    condition = {
      for s in jsondecode(aws_iam_role_policy.this.policy).Statement : s.Sid => [s.Action, s.Resource]
      } == {
      ReadObjects  = [["s3:GetObject"], ["arn:aws:s3:::b/objects/log/*", "arn:aws:s3:::b/objects/runs/*/blobs/*", "arn:aws:s3:::b/objects/runs/*/weights/*"]]
      WriteObjects = [["s3:PutObject", "s3:AbortMultipartUpload"], ["arn:aws:s3:::b/objects/runs/*/blobs/*"]]
      ListObjects  = [["s3:ListBucket"], ["arn:aws:s3:::b"]]
      FetchRelease = [["s3:GetObject"], ["arn:aws:s3:::b/releases/*"]]
      ReadSecret   = [["secretsmanager:GetSecretValue"], ["arn:aws:secretsmanager:us-east-1:123456789012:secret:millrace-x-AbCdEf"]]
    }
    error_message = "a trainer stores files and commits no version"
  }
}

run "publish_weights" {
  module { source = "../modules/instance_role" }
  variables { duties = ["publish_weights"] }

  assert {
    condition = {
      for s in jsondecode(aws_iam_role_policy.this.policy).Statement : s.Sid => [s.Action, s.Resource]
      } == {
      ReadObjects   = [["s3:GetObject"], ["arn:aws:s3:::b/objects/runs/*/blobs/*", "arn:aws:s3:::b/objects/runs/*/weights/*"]]
      WriteObjects  = [["s3:PutObject", "s3:AbortMultipartUpload"], ["arn:aws:s3:::b/objects/runs/*/blobs/*", "arn:aws:s3:::b/objects/runs/*/weights/*"]]
      RemoveObjects = [["s3:DeleteObject"], ["arn:aws:s3:::b/objects/runs/*/blobs/*"]]
      ListObjects   = [["s3:ListBucket"], ["arn:aws:s3:::b"]]
      FetchRelease  = [["s3:GetObject"], ["arn:aws:s3:::b/releases/*"]]
      ReadSecret    = [["secretsmanager:GetSecretValue"], ["arn:aws:secretsmanager:us-east-1:123456789012:secret:millrace-x-AbCdEf"]]
    }
    error_message = "it commits versions and removes files of old ones"
  }
}

run "coordinator" {
  module { source = "../modules/instance_role" }
  variables { duties = ["coordinator"] }

  assert {
    condition = {
      for s in jsondecode(aws_iam_role_policy.this.policy).Statement : s.Sid => [s.Action, s.Resource]
      } == {
      ReadObjects   = [["s3:GetObject"], ["arn:aws:s3:::b/objects/*"]]
      WriteObjects  = [["s3:PutObject", "s3:AbortMultipartUpload"], ["arn:aws:s3:::b/objects/collect/clock", "arn:aws:s3:::b/objects/log/*", "arn:aws:s3:::b/objects/runs/*/blobs/*", "arn:aws:s3:::b/objects/snapshots/*"]]
      RemoveObjects = [["s3:DeleteObject"], ["arn:aws:s3:::b/objects/images/layers/*", "arn:aws:s3:::b/objects/images/manifests/*", "arn:aws:s3:::b/objects/runs/*/blobs/*", "arn:aws:s3:::b/objects/snapshots/*"]]
      ListObjects   = [["s3:ListBucket"], ["arn:aws:s3:::b"]]
      FetchRelease  = [["s3:GetObject"], ["arn:aws:s3:::b/releases/*"]]
      ReadSecret    = [["secretsmanager:GetSecretValue"], ["arn:aws:secretsmanager:us-east-1:123456789012:secret:millrace-x-AbCdEf"]]
    }
    error_message = "it keeps log, snapshots and clock, and collects; it commits no version"
  }
}

run "nats" {
  module { source = "../modules/instance_role" }
  variables { duties = ["nats"] }

  assert {
    condition = {
      for s in jsondecode(aws_iam_role_policy.this.policy).Statement : s.Sid => [s.Action, s.Resource]
      } == {
      FetchRelease = [["s3:GetObject"], ["arn:aws:s3:::b/releases/*"]]
      ReadSecret   = [["secretsmanager:GetSecretValue"], ["arn:aws:secretsmanager:us-east-1:123456789012:secret:millrace-x-AbCdEf"]]
    }
    error_message = "a server reads its release and its secret alone"
  }
}

run "several_duties_have_the_rights_of_each_once" {
  module { source = "../modules/instance_role" }
  variables { duties = ["env_step", "reward"] }

  assert {
    condition = {
      for s in jsondecode(aws_iam_role_policy.this.policy).Statement : s.Sid => [s.Action, s.Resource]
      } == {
      ReadObjects  = [["s3:GetObject"], ["arn:aws:s3:::b/objects/images/layers/*", "arn:aws:s3:::b/objects/images/manifests/*", "arn:aws:s3:::b/objects/images/names/*", "arn:aws:s3:::b/objects/log/*", "arn:aws:s3:::b/objects/runs/*/blobs/*"]]
      WriteObjects = [["s3:PutObject", "s3:AbortMultipartUpload"], ["arn:aws:s3:::b/objects/runs/*/blobs/*"]]
      ListObjects  = [["s3:ListBucket"], ["arn:aws:s3:::b"]]
      FetchRelease = [["s3:GetObject"], ["arn:aws:s3:::b/releases/*"]]
      ReadSecret   = [["secretsmanager:GetSecretValue"], ["arn:aws:secretsmanager:us-east-1:123456789012:secret:millrace-x-AbCdEf"]]
    }
    error_message = "the rights of both"
  }
}

run "the_secret_is_written_and_not_kept" {
  module { source = "../modules/instance_role" }
  variables { duties = ["nats"] }

  assert {
    condition     = aws_secretsmanager_secret_version.this.secret_string == null && aws_secretsmanager_secret_version.this.secret_string_wo == null
    error_message = "the state has the secret"
  }
}

run "sessions_are_asked_for" {
  module { source = "../modules/instance_role" }
  variables {
    duties          = ["nats"]
    session_manager = true
  }

  assert {
    condition     = contains([for s in jsondecode(aws_iam_role_policy.this.policy).Statement : s.Sid], "SessionManager")
    error_message = "the agent of Session Manager has its rights"
  }
}

run "a_key_of_ones_own_is_used" {
  module { source = "../modules/instance_role" }
  variables {
    duties = ["reward"]
    artifacts = {
      arn         = "arn:aws:s3:::b"
      prefix      = "objects"
      kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/k"
    }
  }

  assert {
    condition = one([
      for s in jsondecode(aws_iam_role_policy.this.policy).Statement : s.Resource if s.Sid == "UseBucketKey"
    ]) == ["arn:aws:kms:us-east-1:123456789012:key/k"]
    error_message = "objects are encrypted with it"
  }
}

run "refuses_an_unknown_duty" {
  module { source = "../modules/instance_role" }
  command = plan
  variables { duties = ["trainer"] }
  expect_failures = [var.duties]
}

run "refuses_three_days_of_recovery" {
  module { source = "../modules/instance_role" }
  command = plan
  variables {
    duties        = ["nats"]
    recovery_days = 3
  }
  expect_failures = [var.recovery_days]
}
