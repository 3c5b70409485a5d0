// Writes a directory as a module into a directory that is laid out as a module proxy: gomodule DIRECTORY VERSION PROXY.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: gomodule DIRECTORY VERSION PROXY")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(from, version, proxy string) error {
	mod, err := os.ReadFile(filepath.Join(from, "go.mod"))
	if err != nil {
		return err
	}
	path := modfile.ModulePath(mod)
	escaped, err := module.EscapePath(path)
	if err != nil {
		return err
	}
	into := filepath.Join(proxy, escaped, "@v")
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": version, "Time": time.Now().UTC().Truncate(time.Second)})
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"list": []byte(version + "\n"), version + ".mod": mod, version + ".info": info} {
		if err := os.WriteFile(filepath.Join(into, name), text, 0o644); err != nil {
			return err
		}
	}
	file, err := os.Create(filepath.Join(into, version+".zip"))
	if err != nil {
		return err
	}
	defer file.Close()
	if err := zip.CreateFromDir(file, module.Version{Path: path, Version: version}, from); err != nil {
		return err
	}
	return file.Close()
}
