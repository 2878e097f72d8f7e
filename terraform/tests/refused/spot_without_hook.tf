# refused by: CKV2_MILLRACE_2
resource "aws_autoscaling_group" "spot" {
  name                = "lake-spot"
  min_size            = 0
  max_size            = 4
  vpc_zone_identifier = ["subnet-0"]

  mixed_instances_policy {
    instances_distribution { on_demand_percentage_above_base_capacity = 0 }
    launch_template {
      launch_template_specification { launch_template_id = "lt-0123456789abcdef0" }
    }
  }
}
