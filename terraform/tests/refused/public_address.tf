# refused by: CKV_AWS_88
resource "aws_launch_template" "seen" {
  name          = "lake-seen"
  image_id      = "ami-0123456789abcdef0"
  instance_type = "g6.xlarge"

  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  network_interfaces { associate_public_ip_address = true }
}
