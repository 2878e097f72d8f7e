// Loads a compose file as `docker compose` does, with the environment's variables, and prints it as YAML with everything
// filled in. An unknown field, a missing variable or a reference to nothing is an error.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	text, err := load(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(string(text))
}

func load(files []string) ([]byte, error) {
	options, err := cli.NewProjectOptions(files, cli.WithOsEnv, cli.WithProfiles([]string{"*"}))
	if err != nil {
		return nil, err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return nil, err
	}
	return project.MarshalYAML()
}
