package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
)

// A ratio of ours to a peer's, and what it is to be.
type aim struct{ figure, peer, want string }

func column(all []figures, name string) []float64 {
	var values []float64
	for _, one := range all {
		if value, ok := one[name]; ok {
			values = append(values, value)
		}
	}
	slices.Sort(values)
	return values
}

// A line for tests/bench/table, in the file RETRYRMQ_BENCH_FIGURES if that is set.
func keep(group, kind string, count int, found map[string][]figures) error {
	path := os.Getenv("RETRYRMQ_BENCH_FIGURES")
	if path == "" {
		return nil
	}
	line, err := json.Marshal(map[string]any{"language": "Go", "group": group, "kind": kind, "count": count, "rounds": found})
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := file.Write(append(line, '\n')); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}

// The median of each figure and, in brackets, the least and the most.
func table(names []string, found map[string][]figures) {
	columns := map[string]bool{}
	for _, all := range found {
		for name := range all[0] {
			columns[name] = true
		}
	}
	sorted := slices.Sorted(maps.Keys(columns))
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, " ")
	for _, name := range sorted {
		fmt.Fprintf(w, "\t%s", name)
	}
	fmt.Fprintln(w)
	for _, name := range names {
		fmt.Fprint(w, name)
		for _, figure := range sorted {
			values := column(found[name], figure)
			if len(values) == 0 {
				fmt.Fprint(w, "\t–")
				continue
			}
			fmt.Fprintf(w, "\t%.4g (%.4g–%.4g)", values[len(values)/2], values[0], values[len(values)-1])
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
}

// Round by round, since what disturbs a round disturbs all of it.
func ratios(found map[string][]figures, ours string, aims []aim) {
	for _, aim := range aims {
		var all []float64
		for i, one := range found[ours] {
			if peer := found[aim.peer][i][aim.figure]; peer > 0 {
				all = append(all, one[aim.figure]/peer)
			}
		}
		if len(all) == 0 {
			continue
		}
		slices.Sort(all)
		fmt.Printf("%s: %.2f × %s (%.2f–%.2f) %s\n", aim.figure, all[len(all)/2], aim.peer, all[0], all[len(all)-1], aim.want)
	}
}
