# A VPC with three private subnets. Nothing in them has a public address. S3 is reached by a gateway
# endpoint; other services by a NAT gateway, by interface endpoints, or by both.

data "aws_region" "this" {}

data "aws_availability_zones" "this" {
  count = var.zones == null ? 1 : 0
  state = "available"

  # Local zones have names too; instances of the fleet go to ordinary zones.
  filter {
    name   = "zone-type"
    values = ["availability-zone"]
  }
}

locals {
  region = data.aws_region.this.id
  zones  = var.zones == null ? slice(sort(data.aws_availability_zones.this[0].names), 0, 3) : var.zones
  spare  = cidrsubnet(var.cidr, 2, 3)
  nats   = { none = [], one = slice(local.zones, 0, 1), per_zone = local.zones }[var.nat]

  needed    = concat(["autoscaling", "monitoring", "secretsmanager"], var.session_manager ? ["ssm", "ssmmessages"] : [])
  endpoints = var.interface_endpoints != null ? var.interface_endpoints : var.nat == "none" ? toset(local.needed) : []
}

resource "aws_vpc" "this" {
  cidr_block           = var.cidr
  enable_dns_hostnames = true
  enable_dns_support   = true
  tags                 = { Name = var.name }
}

# The VPC's own security group stays empty: nothing is to run in it unawares.
resource "aws_default_security_group" "this" {
  vpc_id = aws_vpc.this.id
}

resource "aws_subnet" "private" {
  count                   = 3
  vpc_id                  = aws_vpc.this.id
  availability_zone       = local.zones[count.index]
  cidr_block              = cidrsubnet(var.cidr, 2, count.index)
  map_public_ip_on_launch = false
  tags                    = { Name = "${var.name}-private-${count.index}" }
}

resource "aws_route_table" "private" {
  count  = 3
  vpc_id = aws_vpc.this.id
  tags   = { Name = "${var.name}-private-${count.index}" }
}

resource "aws_route_table_association" "private" {
  count          = 3
  subnet_id      = aws_subnet.private[count.index].id
  route_table_id = aws_route_table.private[count.index].id
}

# ---- the way out -----------------------------------------------------------

resource "aws_internet_gateway" "this" {
  count  = length(local.nats) > 0 ? 1 : 0
  vpc_id = aws_vpc.this.id
  tags   = { Name = var.name }
}

resource "aws_subnet" "public" {
  count                   = length(local.nats)
  vpc_id                  = aws_vpc.this.id
  availability_zone       = local.nats[count.index]
  cidr_block              = cidrsubnet(local.spare, 2, count.index)
  map_public_ip_on_launch = false
  tags                    = { Name = "${var.name}-nat-${count.index}" }
}

resource "aws_route_table" "public" {
  count  = length(local.nats) > 0 ? 1 : 0
  vpc_id = aws_vpc.this.id
  tags   = { Name = "${var.name}-nat" }
}

resource "aws_route" "public" {
  count                  = length(local.nats) > 0 ? 1 : 0
  route_table_id         = aws_route_table.public[0].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this[0].id
}

resource "aws_route_table_association" "public" {
  count          = length(local.nats)
  subnet_id      = aws_subnet.public[count.index].id
  route_table_id = aws_route_table.public[0].id
}

resource "aws_eip" "nat" {
  count      = length(local.nats)
  domain     = "vpc"
  tags       = { Name = "${var.name}-nat-${count.index}" }
  depends_on = [aws_internet_gateway.this]
}

resource "aws_nat_gateway" "this" {
  count         = length(local.nats)
  allocation_id = aws_eip.nat[count.index].id
  subnet_id     = aws_subnet.public[count.index].id
  tags          = { Name = "${var.name}-${count.index}" }
  depends_on    = [aws_route.public]
}

resource "aws_route" "out" {
  count                  = length(local.nats) > 0 ? 3 : 0
  route_table_id         = aws_route_table.private[count.index].id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.this[count.index % length(local.nats)].id
}

# ---- endpoints -------------------------------------------------------------

resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.this.id
  service_name      = "com.amazonaws.${local.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = aws_route_table.private[*].id
  tags              = { Name = "${var.name}-s3" }
}

resource "aws_security_group" "endpoints" {
  count       = length(local.endpoints) > 0 ? 1 : 0
  name        = "${var.name}-endpoints"
  description = "Interface endpoints of ${var.name}"
  vpc_id      = aws_vpc.this.id
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  count                        = length(local.endpoints) > 0 ? 1 : 0
  security_group_id            = aws_security_group.endpoints[0].id
  description                  = "HTTPS from the fleet's instances"
  referenced_security_group_id = aws_security_group.member.id
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
}

resource "aws_vpc_endpoint" "interface" {
  for_each            = local.endpoints
  vpc_id              = aws_vpc.this.id
  service_name        = "com.amazonaws.${local.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = aws_subnet.private[*].id
  security_group_ids  = [aws_security_group.endpoints[0].id]
  tags                = { Name = "${var.name}-${each.key}" }
}

# ---- what every instance may reach -----------------------------------------

resource "aws_security_group" "member" {
  name        = "${var.name}-member"
  description = "Every instance of ${var.name}: HTTPS out, and its nats-servers"
  vpc_id      = aws_vpc.this.id
  tags        = { Name = "${var.name}-member" }
}

locals {
  # Packages of the distribution come over HTTP, signed.
  out = merge(
    { https = { port = 443, cidr = "0.0.0.0/0", why = "AWS and package indexes" } },
    { nats = { port = 4222, cidr = var.cidr, why = "the nats-servers" } },
    var.nat == "none" ? {} : { http = { port = 80, cidr = "0.0.0.0/0", why = "packages of the distribution" } },
  )
}

resource "aws_vpc_security_group_egress_rule" "member" {
  for_each          = local.out
  security_group_id = aws_security_group.member.id
  description       = "To ${each.value.why}"
  cidr_ipv4         = each.value.cidr
  ip_protocol       = "tcp"
  from_port         = each.value.port
  to_port           = each.value.port
}

resource "aws_vpc_security_group_egress_rule" "traces" {
  for_each          = toset(try(var.traces.cidrs, []))
  security_group_id = aws_security_group.member.id
  description       = "To the receiver of traces"
  cidr_ipv4         = each.key
  ip_protocol       = "tcp"
  from_port         = var.traces.port
  to_port           = var.traces.port
}

# /metrics and /healthz: of a coordinator at the first port, of worker number n of a machine at the
# first and n.
resource "aws_vpc_security_group_ingress_rule" "monitoring" {
  for_each          = var.monitoring_cidrs
  security_group_id = aws_security_group.member.id
  description       = "Metrics"
  cidr_ipv4         = each.key
  ip_protocol       = "tcp"
  from_port         = 9090
  to_port           = 9105
}
