output "region" {
  description = "Region of the provider."
  value       = local.region
}

output "vpc_id" {
  description = "The VPC."
  value       = aws_vpc.this.id
}

output "subnet_ids" {
  description = "Three private subnets, in the order of the zones. Instances in them are made after the way out and destroyed before it."
  value       = aws_subnet.private[*].id

  depends_on = [
    aws_route.out, aws_route_table_association.private, aws_route_table_association.public,
    aws_vpc_endpoint.s3, aws_vpc_endpoint.interface, aws_vpc_security_group_ingress_rule.endpoints,
    aws_vpc_security_group_egress_rule.member,
  ]
}

output "subnet_cidrs" {
  description = "Their addresses."
  value       = aws_subnet.private[*].cidr_block
}

output "zones" {
  description = "Their zones."
  value       = local.zones
}

output "member_group_id" {
  description = "Security group of every instance of the fleet."
  value       = aws_security_group.member.id
}
