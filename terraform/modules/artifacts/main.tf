# The bucket: weights, rollouts, snapshots below objects/, releases below releases/.

locals {
  uploaded = !can(regex("^[0-9a-f]{64}$", var.release))
  sha256   = local.uploaded ? filesha256(var.release) : var.release
  # A version's manifest and the log's segments are commits: created once, never changed.
  commits = ["objects/runs/*/weights/*", "objects/log/*"]
}

resource "aws_s3_bucket" "this" {
  bucket        = var.bucket
  bucket_prefix = var.bucket == null ? "${var.name}-" : null
  force_destroy = var.force_destroy
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket                  = aws_s3_bucket.this.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "this" {
  bucket = aws_s3_bucket.this.id
  rule { object_ownership = "BucketOwnerEnforced" }
}

resource "aws_s3_bucket_versioning" "this" {
  bucket = aws_s3_bucket.this.id
  versioning_configuration { status = "Enabled" }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    bucket_key_enabled = var.kms_key_arn != null
    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

# No rule expires a current object. Which weights are kept is a run's `retention`; the coordinator
# collects the rest.
resource "aws_s3_bucket_lifecycle_configuration" "this" {
  bucket     = aws_s3_bucket.this.id
  depends_on = [aws_s3_bucket_versioning.this]

  rule {
    id     = "abort-uploads"
    status = "Enabled"
    filter {}
    abort_incomplete_multipart_upload { days_after_initiation = 1 }
  }

  rule {
    id     = "forget-overwritten"
    status = "Enabled"
    filter {}
    noncurrent_version_expiration { noncurrent_days = var.keep_overwritten_days }
    expiration { expired_object_delete_marker = true }
  }
}

resource "aws_s3_bucket_policy" "this" {
  bucket     = aws_s3_bucket.this.id
  depends_on = [aws_s3_bucket_public_access_block.this]

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "TlsOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:*"
        Resource  = [aws_s3_bucket.this.arn, "${aws_s3_bucket.this.arn}/*"]
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
      {
        Sid       = "CommitsAreCreatedOnce"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:PutObject"
        Resource  = [for path in local.commits : "${aws_s3_bucket.this.arn}/${path}"]
        Condition = { Null = { "s3:if-none-match" = "true" } }
      },
    ]
  })
}

resource "aws_s3_object" "release" {
  count       = local.uploaded ? 1 : 0
  bucket      = aws_s3_bucket.this.id
  key         = "releases/${local.sha256}.tar.gz"
  source      = var.release
  source_hash = local.sha256
  depends_on  = [aws_s3_bucket_server_side_encryption_configuration.this, aws_s3_bucket_versioning.this]

  # Until every launch template names the new release, instances fetch the one before.
  lifecycle { create_before_destroy = true }
}
