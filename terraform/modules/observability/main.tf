# Alarms on what AWS sees from outside. What the queue itself says (lag, drops, staleness) is in
# Millrace's own metrics.

locals {
  topic   = var.topic_arn != null ? var.topic_arn : one(aws_sns_topic.this[*].arn)
  actions = local.topic == null ? [] : [local.topic]
  nodes   = { for index, id in var.nats_instance_ids : tostring(index) => id }
}

resource "aws_sns_topic" "this" {
  count = var.email == null ? 0 : 1
  name  = "${var.name}-alarms"
}

resource "aws_sns_topic_subscription" "this" {
  count     = var.email == null ? 0 : 1
  topic_arn = aws_sns_topic.this[0].arn
  protocol  = "email"
  endpoint  = var.email
}

# ---- workers ---------------------------------------------------------------

resource "aws_cloudwatch_metric_alarm" "missing" {
  for_each            = var.groups
  alarm_name          = "${var.name}-${each.key}-missing"
  alarm_description   = "Pool ${each.key} has had fewer instances than asked for during ${var.missing_minutes} minutes: no capacity, or each launch fails. Look at the group's activity. An instance counts once it runs, with or without a worker that serves: that is told by the alert MillraceScaleBehind."
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = var.missing_minutes
  datapoints_to_alarm = var.missing_minutes
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.actions
  ok_actions          = local.actions

  metric_query {
    id          = "missing"
    expression  = "desired - serving"
    label       = "instances missing"
    return_data = true
  }

  dynamic "metric_query" {
    for_each = { desired = "GroupDesiredCapacity", serving = "GroupInServiceInstances" }
    content {
      id = metric_query.key
      metric {
        namespace   = "AWS/AutoScaling"
        metric_name = metric_query.value
        dimensions  = { AutoScalingGroupName = each.value }
        period      = 60
        stat        = "Average"
      }
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "draining" {
  for_each            = var.groups
  alarm_name          = "${var.name}-${each.key}-draining"
  alarm_description   = "Instances of pool ${each.key} have been leaving for ${var.draining_minutes} minutes: a worker heartbeats its hook and does not finish. Read its journal, or complete the hook."
  namespace           = "AWS/AutoScaling"
  metric_name         = "GroupTerminatingInstances"
  dimensions          = { AutoScalingGroupName = each.value }
  statistic           = "Minimum"
  period              = 60
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = var.draining_minutes
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.actions
  ok_actions          = local.actions
}

# ---- coordinators ----------------------------------------------------------

resource "aws_cloudwatch_metric_alarm" "coordinator" {
  alarm_name          = "${var.name}-coordinator"
  alarm_description   = "Fewer than two coordinators: the next loss stops all runs until one is back."
  namespace           = "AWS/AutoScaling"
  metric_name         = "GroupInServiceInstances"
  dimensions          = { AutoScalingGroupName = var.coordinator_group }
  statistic           = "Minimum"
  period              = 60
  comparison_operator = "LessThanThreshold"
  threshold           = 2
  evaluation_periods  = 10
  treat_missing_data  = "breaching"
  alarm_actions       = local.actions
  ok_actions          = local.actions
}

# ---- nats-servers ----------------------------------------------------------

resource "aws_cloudwatch_metric_alarm" "disk" {
  for_each            = local.nodes
  alarm_name          = "${var.name}-nats-${each.key}-disk"
  alarm_description   = "The data volume of nats-server ${each.key} is more than ${var.disk_percent} % full, or does not report. A full one takes no more work; nothing is lost."
  namespace           = "Millrace"
  metric_name         = "DataVolumeUsed"
  dimensions          = { Fleet = var.name, Node = each.key }
  statistic           = "Maximum"
  period              = 60
  comparison_operator = "GreaterThanThreshold"
  threshold           = var.disk_percent
  evaluation_periods  = 10
  treat_missing_data  = "breaching"
  alarm_actions       = local.actions
  ok_actions          = local.actions
}

resource "aws_cloudwatch_metric_alarm" "node" {
  for_each            = local.nodes
  alarm_name          = "${var.name}-nats-${each.key}"
  alarm_description   = "nats-server ${each.key} fails EC2's checks. The other two go on; replace it before another fails."
  namespace           = "AWS/EC2"
  metric_name         = "StatusCheckFailed"
  dimensions          = { InstanceId = each.value }
  statistic           = "Maximum"
  period              = 60
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 3
  treat_missing_data  = "breaching"
  alarm_actions       = local.actions
  ok_actions          = local.actions
}

# ---- rejected connections --------------------------------------------------

resource "aws_cloudwatch_log_group" "flow" {
  count             = var.flow_logs == null ? 0 : 1
  name              = "/millrace/${var.name}/flow"
  retention_in_days = var.flow_logs.days
}

resource "aws_iam_role" "flow" {
  count       = var.flow_logs == null ? 0 : 1
  name        = "${var.name}-flow-logs"
  description = "Flow logs of ${var.name}"

  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "vpc-flow-logs.amazonaws.com" } }]
  })
}

resource "aws_iam_role_policy" "flow" {
  count = var.flow_logs == null ? 0 : 1
  name  = "write"
  role  = aws_iam_role.flow[0].id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"]
        Resource = "${aws_cloudwatch_log_group.flow[0].arn}:*"
      },
      # AWS knows no narrower right to look whether the group exists.
      { Effect = "Allow", Action = "logs:DescribeLogGroups", Resource = "*" },
    ]
  })
}

resource "aws_flow_log" "this" {
  count           = var.flow_logs == null ? 0 : 1
  vpc_id          = var.flow_logs.vpc_id
  traffic_type    = "REJECT"
  log_destination = aws_cloudwatch_log_group.flow[0].arn
  iam_role_arn    = aws_iam_role.flow[0].arn
}
