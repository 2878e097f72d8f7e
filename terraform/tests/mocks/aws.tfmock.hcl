# What AWS would answer where made-up words will not do.

mock_data "aws_region" {
  defaults = { id = "us-east-1", name = "us-east-1" }
}

mock_data "aws_partition" {
  defaults = { partition = "aws" }
}

mock_data "aws_availability_zones" {
  defaults = { names = ["us-east-1c", "us-east-1a", "us-east-1d", "us-east-1b"] }
}

mock_data "aws_ssm_parameter" {
  defaults = { insecure_value = "ami-0123456789abcdef0" }
}

mock_resource "aws_s3_bucket" {
  defaults = { id = "millrace-bucket", arn = "arn:aws:s3:::millrace-bucket" }
}

mock_resource "aws_iam_role" {
  defaults = { arn = "arn:aws:iam::123456789012:role/mocked" }
}

mock_resource "aws_secretsmanager_secret" {
  defaults = { arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:millrace-x-AbCdEf" }
}

mock_resource "aws_ebs_volume" {
  defaults = { id = "vol-0123456789abcdef0", arn = "arn:aws:ec2:us-east-1:123456789012:volume/vol-0123456789abcdef0" }
}

mock_resource "aws_launch_template" {
  defaults = { id = "lt-0123456789abcdef0", latest_version = 1 }
}

mock_resource "aws_sns_topic" {
  defaults = { arn = "arn:aws:sns:us-east-1:123456789012:mocked" }
}

mock_resource "aws_cloudwatch_log_group" {
  defaults = { arn = "arn:aws:logs:us-east-1:123456789012:log-group:mocked" }
}
