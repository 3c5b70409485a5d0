package io.github.retryrmq.spring;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** Other programs that tests run. */
final class Program {

    private Program() {
    }

    /** Runs a program to its end, and returns what it printed. */
    static String run(List<String> command, Map<String, String> environment) {
        try {
            ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
            builder.environment().putAll(environment);
            Process process = builder.start();
            process.getOutputStream().close();
            String printed = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            int status = process.waitFor();
            if (status != 0) {
                throw new IllegalStateException(command + " ended with " + status + ": " + printed);
            }
            return printed;
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
    }

    /** A Java program with the class path of the tests, whose lines are read while it runs. */
    record Running(Process process, BlockingQueue<String> lines, Thread reader) {

        static Running of(Class<?> main, String... arguments) {
            List<String> command = new ArrayList<>(List.of(System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1", "-cp",
                    System.getProperty("java.class.path"), main.getName()));
            command.addAll(List.of(arguments));
            try {
                Process process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
                BlockingQueue<String> lines = new LinkedBlockingQueue<>();
                Thread reader = new Thread(() -> {
                    try (var out = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
                        out.lines().forEach(lines::add);
                    } catch (IOException | UncheckedIOException killed) {
                        // Its last line may be cut off.
                    }
                });
                reader.setDaemon(true);
                reader.start();
                return new Running(process, lines, reader);
            } catch (IOException failed) {
                throw new UncheckedIOException(failed);
            }
        }

        /** Returns when all that it printed is in its lines. */
        void kill() throws InterruptedException {
            // Process.destroyForcibly would close the pipe, and what is in it would be lost.
            process.toHandle().destroyForcibly();
            process.waitFor();
            reader.join();
        }
    }
}
