# refused by: CKV_AWS_53 CKV_AWS_54 CKV_AWS_55 CKV_AWS_56 CKV_AWS_20
resource "aws_s3_bucket" "open" {
  bucket = "lake-open"
}

resource "aws_s3_bucket_acl" "open" {
  bucket = aws_s3_bucket.open.id
  acl    = "public-read"
}

resource "aws_s3_bucket_public_access_block" "open" {
  bucket                  = aws_s3_bucket.open.id
  block_public_acls       = false
  block_public_policy     = false
  ignore_public_acls      = false
  restrict_public_buckets = false
}
