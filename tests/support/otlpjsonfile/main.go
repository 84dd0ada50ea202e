// Reads a file of OTLP JSON lines as the Collector's otlpjsonfile receiver does: by the file
// consumer with its defaults (a line longer than max_log_size falls apart), then each line by the
// decoder for traces. Prints one span a line, tab-separated: trace id, span id, parent id, name,
// number of attributes, number of links. Usage: otlpjsonfile FILE SPANS; ends when so many spans
// have been read, or fails after a minute.
//
// scripts/test-jaeger builds it beside Jaeger, from modules of the same release.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/stanza/fileconsumer"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

const patience = time.Minute

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 2 {
		return fmt.Errorf("usage: otlpjsonfile FILE SPANS")
	}
	wanted, err := strconv.Atoi(arguments[1])
	if err != nil {
		return err
	}
	config := fileconsumer.NewConfig()
	config.Include = []string{arguments[0]}
	config.StartAt = "beginning"
	decoder := &ptrace.JSONUnmarshaler{}
	found := make(chan ptrace.Traces)
	broken := make(chan error)
	stopped := make(chan struct{})
	emit := func(_ context.Context, lines [][]byte, _ map[string]any, _ int64, _ []int64) error {
		for _, line := range lines {
			traces, err := decoder.UnmarshalTraces(line)
			if err != nil {
				select {
				case broken <- fmt.Errorf("a line of %d bytes: %w", len(line), err):
				case <-stopped:
				}
				continue
			}
			select {
			case found <- traces:
			case <-stopped:
			}
		}
		return nil
	}
	consumer, err := config.Build(componenttest.NewNopTelemetrySettings(), emit)
	if err != nil {
		return err
	}
	if err := consumer.Start(nil); err != nil {
		return err
	}
	defer func() { _ = consumer.Stop() }()
	defer close(stopped)
	enough := time.After(patience)
	for read := 0; read < wanted; {
		select {
		case traces := <-found:
			show(traces)
			read += traces.SpanCount()
		case err := <-broken:
			return err
		case <-enough:
			return fmt.Errorf("%d of %d spans within %s", read, wanted, patience)
		}
	}
	return nil
}

func show(traces ptrace.Traces) {
	for _, resource := range traces.ResourceSpans().All() {
		for _, scope := range resource.ScopeSpans().All() {
			for _, span := range scope.Spans().All() {
				fmt.Printf("%s\t%s\t%s\t%s\t%d\t%d\n", span.TraceID(), span.SpanID(),
					span.ParentSpanID(), span.Name(), span.Attributes().Len(), span.Links().Len())
			}
		}
	}
}
