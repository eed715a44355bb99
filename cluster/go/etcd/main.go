// Command etcd is etcd's server, built from its module: upstream's own main package lives outside of it.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
