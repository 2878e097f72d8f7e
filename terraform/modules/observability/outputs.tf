output "topic_arn" {
  description = "The topic that hears of alarms, or null."
  value       = local.topic
}

output "alarms" {
  description = "Names of all alarms."
  value = sort(concat(
    [for alarm in aws_cloudwatch_metric_alarm.missing : alarm.alarm_name],
    [for alarm in aws_cloudwatch_metric_alarm.draining : alarm.alarm_name],
    [aws_cloudwatch_metric_alarm.coordinator.alarm_name],
    [for alarm in aws_cloudwatch_metric_alarm.disk : alarm.alarm_name],
    [for alarm in aws_cloudwatch_metric_alarm.node : alarm.alarm_name],
  ))
}
