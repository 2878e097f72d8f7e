// The control plane of Kubernetes and kubectl as one program, since they share most of what they link:
// kube apiserver|controller-manager|scheduler|kubectl FLAGS. `go install` refuses k8s.io/kubernetes for its replaces.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func command(name string) *cobra.Command {
	switch name {
	case "apiserver":
		return apiserver.NewAPIServerCommand()
	case "controller-manager":
		return controllers.NewControllerManagerCommand()
	case "scheduler":
		return scheduler.NewSchedulerCommand()
	case "kubectl":
		return kubectl.NewDefaultKubectlCommand()
	}
	return nil
}

func main() {
	name := ""
	if len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = append(os.Args[:1], os.Args[2:]...)
	}
	chosen := command(name)
	if chosen == nil {
		fmt.Fprintln(os.Stderr, "usage: kube apiserver|controller-manager|scheduler|kubectl FLAGS")
		os.Exit(2)
	}
	os.Exit(cli.Run(chosen))
}
