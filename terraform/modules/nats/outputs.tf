output "url" {
  description = "The servers, as NATS_URL has them. Its users are made after the servers and destroyed before them."
  value       = join(",", [for address in local.addresses : "tls://${address}:4222"])
  depends_on  = [aws_volume_attachment.data, aws_vpc_security_group_ingress_rule.member]
}

output "addresses" {
  description = "Addresses of the nodes, for `millrace init-auth --host`."
  value       = local.addresses
}

output "instance_ids" {
  description = "The nodes."
  value       = aws_instance.node[*].id
}

output "security_group_id" {
  description = "Security group of the servers."
  value       = aws_security_group.this.id
}

output "context" {
  description = "A context of the `nats` command, as JSON: ~/.config/nats/context/NAME.json."
  value = jsonencode({
    description  = "Millrace ${var.fleet.name}"
    url          = join(",", [for address in local.addresses : "tls://${address}:4222"])
    nkey         = abspath("${local.auth}/keys/submitter.nk")
    ca           = abspath("${local.auth}/tls/ca.pem")
    inbox_prefix = "_INBOX_submitter"
  })
}
