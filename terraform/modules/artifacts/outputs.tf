output "bucket" {
  description = "Name of the bucket."
  value       = aws_s3_bucket.this.id
}

output "arn" {
  description = "ARN of the bucket."
  value       = aws_s3_bucket.this.arn
}

output "prefix" {
  description = "Where the fleet's objects lie in it."
  value       = "objects"
}

output "location" {
  description = "The object store, as `--objects` takes it."
  value       = "s3://${aws_s3_bucket.this.id}/objects"
}

output "release" {
  description = "sha256 of the release that instances fetch. They come after it."
  value       = local.sha256
  depends_on  = [aws_s3_object.release]
}

output "kms_key_arn" {
  description = "KMS key of the bucket, or null."
  value       = var.kms_key_arn
}
