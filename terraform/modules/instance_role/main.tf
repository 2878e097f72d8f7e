# What an instance may do, and its secret. Rights follow from duties, and the table of paths is here
# alone. The paths themselves are made in schemas/src/blob/paths.rs.

data "aws_partition" "this" {}

locals {
  blobs     = ["runs/*/blobs/*"]
  manifests = ["runs/*/weights/*"]
  log       = ["log/*"]
  # Files of sandboxes. `millrace env push` writes them, with the rights of who calls it.
  image_names = ["images/names/*"]
  image_files = ["images/manifests/*", "images/layers/*"]

  # Large payloads of any stage are blobs, so each worker reads and writes them; readers check their
  # hash. Tasks refer to earlier turns in the log, which may have been trimmed to segments.
  worker = { read = concat(local.blobs, local.log), write = local.blobs, delete = [] }

  table = {
    generate = merge(local.worker, { read = concat(local.worker.read, local.manifests) })
    # It runs agents in sandboxes.
    env_step = merge(local.worker, { read = concat(local.worker.read, local.image_names, local.image_files) })
    reward   = local.worker
    train_shard = merge(local.worker, {
      read = concat(local.worker.read, local.manifests)
    })
    # The one stage that commits versions, and removes the files of those that its run gives up.
    publish_weights = {
      read   = concat(local.blobs, local.manifests)
      write  = concat(local.blobs, local.manifests)
      delete = local.blobs
    }
    coordinator = {
      read   = ["*"]
      write  = concat(local.blobs, local.log, ["snapshots/*", "collect/clock"])
      delete = concat(local.blobs, local.image_files, ["snapshots/*"])
    }
    nats = { read = [], write = [], delete = [] }
  }

  paths = {
    for verb in ["read", "write", "delete"] : verb => sort(distinct(flatten([
      for duty in var.duties : [for path in local.table[duty][verb] : "${var.artifacts.arn}/${var.artifacts.prefix}/${path}"]
    ])))
  }

  objects = [
    for statement in [
      { sid = "ReadObjects", actions = ["s3:GetObject"], resources = local.paths.read },
      { sid = "WriteObjects", actions = ["s3:PutObject", "s3:AbortMultipartUpload"], resources = local.paths.write },
      { sid = "RemoveObjects", actions = ["s3:DeleteObject"], resources = local.paths.delete },
      # Without this right, S3 answers 403 instead of 404 for an object that is not there. Object
      # names are hashes.
      { sid = "ListObjects", actions = ["s3:ListBucket"], resources = length(local.paths.read) > 0 ? [var.artifacts.arn] : [] },
      # All of them: while a new release is rolled out, instances of the one before still start.
      { sid = "FetchRelease", actions = ["s3:GetObject"], resources = ["${var.artifacts.arn}/releases/*"] },
      {
        sid       = "UseBucketKey"
        actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
        resources = var.artifacts.kms_key_arn == null ? [] : [var.artifacts.kms_key_arn]
      },
      { sid = "ReadSecret", actions = ["secretsmanager:GetSecretValue"], resources = [aws_secretsmanager_secret.this.arn] },
    ] : { Sid = statement.sid, Effect = "Allow", Action = statement.actions, Resource = statement.resources }
    if length(statement.resources) > 0
  ]

  # What the agent of Session Manager calls; AmazonSSMManagedInstanceCore has more.
  sessions = [{
    Sid    = "SessionManager"
    Effect = "Allow"
    Action = [
      "ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel",
      "ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel",
    ]
    Resource = "*"
  }]
}

resource "aws_iam_role" "this" {
  name        = var.name
  description = "Instances that do ${join(", ", sort(var.duties))}"

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = data.aws_partition.this.partition == "aws-cn" ? "ec2.amazonaws.com.cn" : "ec2.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "this" {
  name = "duties"
  role = aws_iam_role.this.id

  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = concat(local.objects, var.session_manager ? local.sessions : [], var.statements)
  })
}

resource "aws_iam_instance_profile" "this" {
  name = var.name
  role = aws_iam_role.this.name
}

# ---- the secret ------------------------------------------------------------

resource "aws_secretsmanager_secret" "this" {
  # A name of its own each time: one that was removed stays reserved for days.
  name_prefix             = "${var.name}-"
  description             = "Key and certificates of ${var.name}"
  recovery_window_in_days = var.recovery_days
}

resource "aws_secretsmanager_secret_version" "this" {
  secret_id                = aws_secretsmanager_secret.this.id
  secret_string_wo         = jsonencode(var.secret_files)
  secret_string_wo_version = var.secret_version
}
