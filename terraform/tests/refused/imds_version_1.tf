# refused by: CKV_AWS_79
resource "aws_launch_template" "old" {
  name          = "lake-old"
  image_id      = "ami-0123456789abcdef0"
  instance_type = "g6.xlarge"

  metadata_options {
    http_endpoint = "enabled"
    http_tokens   = "optional"
  }

  network_interfaces { associate_public_ip_address = false }
}
