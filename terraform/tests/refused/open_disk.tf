# refused by: CKV_AWS_3
resource "aws_ebs_volume" "open" {
  availability_zone = "us-east-1a"
  size              = 100
  encrypted         = false
}
