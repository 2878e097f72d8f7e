// etcd, as the program of that name. Its own module cannot be installed: it replaces its parts by folders beside it.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
