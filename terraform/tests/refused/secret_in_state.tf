# refused by: CKV2_MILLRACE_3
variable "key" {
  type      = string
  sensitive = true
}

resource "aws_secretsmanager_secret_version" "kept" {
  secret_id     = "lake-x"
  secret_string = var.key
}
