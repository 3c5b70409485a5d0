package io.github.retryrmq.spring;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.TimeoutException;
import java.util.stream.Stream;

import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.GetResponse;
import org.junit.jupiter.api.Assumptions;

/** A broker of {@code RETRYRMQ_TEST_BROKERS}, as tests/broker/with-brokers starts them. */
record TestBroker(String version, String url, String management, String control, String node) {

    /** The newest broker, or with {@code RETRYRMQ_TEST_MATRIX=full} every one. */
    static Stream<TestBroker> all() {
        List<TestBroker> all = new ArrayList<>();
        for (String line : System.getenv().getOrDefault("RETRYRMQ_TEST_BROKERS", "").lines().filter(it -> !it.isBlank()).toList()) {
            String[] parts = line.split("\\|", -1);
            all.add(new TestBroker(parts[0], parts[1], parts[2], parts[3], ""));
        }
        Assumptions.assumeFalse(all.isEmpty(), "RETRYRMQ_TEST_BROKERS is not set: run integrations/spring/test");
        boolean full = "full".equals(System.getenv("RETRYRMQ_TEST_MATRIX"));
        return full ? all.stream() : Stream.of(all.get(all.size() - 1));
    }

    @Override
    public String toString() {
        return "RabbitMQ " + version;
    }

    /** A node for one test, which may kill it. */
    TestBroker spawn() {
        Assumptions.assumeFalse(control.isEmpty(), "this broker may not be killed");
        String number = run("spawn", series()).strip();
        List<String> urls = run("url", series(), number).lines().toList();
        return new TestBroker(version, urls.get(0), urls.get(1), control, number);
    }

    void kill() {
        run("kill", series(), node);
    }

    void start() {
        run("start", series(), node);
    }

    void release() {
        run("release", series(), node);
    }

    private String series() {
        return version.substring(0, version.indexOf('.', version.indexOf('.') + 1));
    }

    private String run(String... arguments) {
        List<String> command = new ArrayList<>(List.of("sh", "-c", control + " \"$@\"", "sh"));
        command.addAll(Arrays.asList(arguments));
        return Program.run(command, Map.of());
    }

    /** A virtual host of its own. */
    Vhost vhost() {
        String name = "spring-" + UUID.randomUUID();
        manage("PUT", "/api/vhosts/" + name, "");
        manage("PUT", "/api/permissions/" + name + "/" + user(), "{\"configure\": \".*\", \"write\": \".*\", \"read\": \".*\"}");
        return new Vhost(this, name);
    }

    private String user() {
        return URI.create(url).getUserInfo().split(":")[0];
    }

    void manage(String method, String path, String body) {
        String login = Base64.getEncoder().encodeToString(URI.create(url).getUserInfo().getBytes(StandardCharsets.UTF_8));
        URI there = URI.create(management.replaceFirst("//[^@/]*@", "//") + path);
        try {
            HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
            HttpResponse<String> answer = client.send(HttpRequest.newBuilder(there).header("Authorization", "Basic " + login)
                    .header("Content-Type", "application/json").method(method, HttpRequest.BodyPublishers.ofString(body)).build(),
                    HttpResponse.BodyHandlers.ofString());
            // a busy broker says 500 of a deletion that it goes on with
            boolean isGoing = method.equals("DELETE") && answer.statusCode() == 500;
            if (answer.statusCode() >= 300 && !isGoing) {
                throw new IllegalStateException(method + " " + path + ": " + answer.statusCode() + " " + answer.body());
            }
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
    }

    /** A virtual host for one test, which is deleted at its end. */
    record Vhost(TestBroker broker, String name) implements AutoCloseable {

        private static final int PATIENCE_MS = 120_000;

        String url() {
            URI all = URI.create(broker.url);
            return all.getScheme() + "://" + all.getUserInfo() + "@" + all.getHost() + ":" + all.getPort() + "/" + name;
        }

        <T> T channel(Work<T> work) {
            ConnectionFactory factory = new ConnectionFactory();
            try {
                factory.setUri(url());
                // a busy broker takes longer than the ten seconds of a client
                factory.setConnectionTimeout(PATIENCE_MS);
                factory.setHandshakeTimeout(PATIENCE_MS);
                try (Connection connection = factory.newConnection()) {
                    return work.with(connection.createChannel());
                }
            } catch (IOException | TimeoutException | InterruptedException | java.security.GeneralSecurityException
                    | java.net.URISyntaxException failed) {
                throw new IllegalStateException(failed);
            }
        }

        void declare(String queue, String type) {
            channel(channel -> channel.queueDeclare(queue, true, false, false, Map.of("x-queue-type", type)));
        }

        void publish(String queue, BasicProperties properties, String... bodies) {
            channel(channel -> {
                channel.confirmSelect();
                for (String body : bodies) {
                    channel.basicPublish("", queue, true, properties, body.getBytes(StandardCharsets.UTF_8));
                }
                channel.waitForConfirmsOrDie();
                return null;
            });
        }

        /** How many messages are ready in a queue, or -1 if there is none. */
        long depth(String queue) {
            return channel(channel -> {
                try {
                    return channel.messageCount(queue);
                } catch (IOException missing) {
                    return -1L;
                }
            });
        }

        GetResponse take(String queue) {
            return channel(channel -> channel.basicGet(queue, true));
        }

        @Override
        public void close() {
            broker.manage("DELETE", "/api/vhosts/" + name, "");
        }
    }

    interface Work<T> {
        T with(Channel channel) throws IOException, InterruptedException, TimeoutException;
    }
}
