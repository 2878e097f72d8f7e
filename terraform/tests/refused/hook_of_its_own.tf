# refused by: CKV2_MILLRACE_1
resource "aws_autoscaling_lifecycle_hook" "drain" {
  name                   = "drain"
  autoscaling_group_name = "lake-gpu"
  lifecycle_transition   = "autoscaling:EC2_INSTANCE_TERMINATING"
  heartbeat_timeout      = 300
  default_result         = "CONTINUE"
}
