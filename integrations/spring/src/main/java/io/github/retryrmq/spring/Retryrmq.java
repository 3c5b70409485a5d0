package io.github.retryrmq.spring;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.regex.Pattern;

import org.aopalliance.aop.Advice;
import org.apache.commons.logging.Log;
import org.apache.commons.logging.LogFactory;
import org.jspecify.annotations.Nullable;
import org.springframework.amqp.core.AcknowledgeMode;
import org.springframework.amqp.core.MessageListener;
import org.springframework.amqp.core.MessagePostProcessor;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.rabbit.batch.BatchingStrategy;
import org.springframework.amqp.rabbit.config.AbstractRabbitListenerContainerFactory;
import org.springframework.amqp.rabbit.config.ContainerCustomizer;
import org.springframework.amqp.rabbit.connection.ConnectionFactory;
import org.springframework.amqp.rabbit.listener.AbstractMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.api.ChannelAwareBatchMessageListener;
import org.springframework.amqp.core.BatchMessageListener;
import org.springframework.amqp.rabbit.support.MessagePropertiesConverter;
import org.springframework.amqp.support.ConsumerTagStrategy;
import org.springframework.beans.DirectFieldAccessor;
import org.springframework.beans.factory.config.BeanPostProcessor;
import org.springframework.context.ApplicationListener;
import org.springframework.context.event.ContextClosedEvent;
import org.springframework.util.ErrorHandler;

/**
 * The one bean that retries and parks the failed messages of all listeners:
 *
 * <pre>{@code
 * @Bean
 * static Retryrmq retryrmq() {
 *     return new Retryrmq(new RetryOptions().retry("exponential(1s, max=5m, retries=8)"));
 * }
 * }</pre>
 *
 * <p>It prepares the containers of every {@code RabbitListenerContainerFactory}, and containers that are beans. A failed message is copied into a
 * waiting queue and acknowledged when the broker has confirmed the copy. The work queue itself is not changed.
 */
public final class Retryrmq implements BeanPostProcessor, ApplicationListener<ContextClosedEvent> {

    static final Log LOGGER = LogFactory.getLog(Retryrmq.class);
    static final String HOST = host();
    private static final Pattern RESERVED = Pattern.compile(".*\\.(parked|parked\\.dropped|unreadable|retry\\.[0-9]+)", Pattern.DOTALL);

    private final Supplier<Function<String, RetryOptions>> options;
    /** Whether {@code dlx} can be on for a queue whose name is not known yet. */
    private final BooleanSupplier anywhere;
    private final Map<ConnectionFactory, Broker> brokers = Collections.synchronizedMap(new IdentityHashMap<>());
    private final Set<AbstractMessageListenerContainer> prepared = Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap<>()));

    private volatile boolean closing;

    /** The same options for every queue. */
    public Retryrmq(RetryOptions options) {
        this(() -> queue -> options, () -> options.dlx);
    }

    /** Options by the name of the queue. They are asked for when the first container is made. */
    public Retryrmq(Supplier<Function<String, RetryOptions>> options) {
        this(options, () -> true);
    }

    Retryrmq(Supplier<Function<String, RetryOptions>> options, BooleanSupplier anywhere) {
        this.options = options;
        this.anywhere = anywhere;
    }

    /**
     * A work queue as retryrmq would create it, for a {@code Queue} bean: durable, quorum, and what the broker itself gives up on goes to the parking
     * queue. An existing queue needs no change, and must be declared as it is.
     */
    public static Queue workQueue(String name) {
        return QueueBuilder.durable(name).quorum().deadLetterExchange("").deadLetterRoutingKey(name + ".parked")
                .withArgument("x-dead-letter-strategy", "at-least-once").withArgument("x-overflow", "reject-publish").build();
    }

    @Override
    public Object postProcessBeforeInitialization(Object bean, String name) {
        if (bean instanceof AbstractMessageListenerContainer container) {
            prepare(container);
        }
        return bean;
    }

    @Override
    public Object postProcessAfterInitialization(Object bean, String name) {
        if (bean instanceof AbstractRabbitListenerContainerFactory<?> factory) {
            customize(factory);
        }
        if (bean instanceof AbstractMessageListenerContainer container && !prepared.contains(container) && isOn(container)) {
            throw refused(container, "it is made by a FactoryBean, which cannot be changed any more; make it with @RabbitListener or as a bean of its own");
        }
        return bean;
    }

    @Override
    public void onApplicationEvent(ContextClosedEvent event) {
        closing = true;
    }

    @SuppressWarnings("unchecked")
    private <C extends AbstractMessageListenerContainer> void customize(AbstractRabbitListenerContainerFactory<C> factory) {
        var own = (ContainerCustomizer<C>) new DirectFieldAccessor(factory).getPropertyValue("containerCustomizer");
        factory.setContainerCustomizer(container -> {
            if (own != null) {
                own.configure(container);
            }
            prepare(container);
        });
    }

    private boolean isOn(AbstractMessageListenerContainer container) {
        return container.getQueueNames().length == 0 ? anywhere.getAsBoolean()
                : Arrays.stream(container.getQueueNames()).anyMatch(queue -> options.get().apply(queue).dlx);
    }

    private void prepare(AbstractMessageListenerContainer container) {
        if (!isOn(container) || !prepared.add(container)) {
            return;
        }
        check(container);
        Map<String, Optional<Retrier>> retriers = new ConcurrentHashMap<>();
        Function<String, @Nullable Retrier> retrier =
                queue -> retriers.computeIfAbsent(queue, name -> retrier(name, container)).orElse(null);
        Arrays.stream(container.getQueueNames()).forEach(retrier::apply);

        DirectFieldAccessor fields = new DirectFieldAccessor(container);
        RetryAdvice advice = new RetryAdvice(retrier, (MessagePropertiesConverter) fields.getPropertyValue("messagePropertiesConverter"),
                unpacking(container, fields), new Isolation(container, () -> closing));
        container.setMessagePropertiesConverter(advice);
        Advice[] others = (Advice[]) fields.getPropertyValue("adviceChain");
        Advice[] all = new Advice[others.length + 1];
        all[0] = advice;
        System.arraycopy(others, 0, all, 1, others.length);
        container.setAdviceChain(all);
        container.setErrorHandler(errorHandler((ErrorHandler) fields.getPropertyValue("errorHandler")));

        // Asked immediately before each basic.consume, on every connection: the queues for failed messages are there before the first message.
        var tags = (ConsumerTagStrategy) fields.getPropertyValue("consumerTagStrategy");
        container.setConsumerTagStrategy(queue -> {
            Retrier prepared = retrier.apply(queue);
            if (prepared != null) {
                prepared.prepare();
            }
            return tags == null ? "" : tags.createConsumerTag(queue);
        });
    }

    /** The user's own, except for a message that must be requeued: an error handler may have it rejected or acknowledged. */
    private static ErrorHandler errorHandler(@Nullable ErrorHandler own) {
        return thrown -> {
            CopyNotStoredException notStored = Failure.cause(thrown, CopyNotStoredException.class);
            if (notStored != null) {
                LOGGER.error(notStored.getMessage(), notStored);
            } else if (own != null) {
                own.handleError(thrown);
            } else {
                LOGGER.error("a listener failed", thrown);
            }
        };
    }

    /** Takes over what the container does with a message before its listener. */
    @SuppressWarnings("unchecked")
    private static RetryAdvice.Unpacking unpacking(AbstractMessageListenerContainer container, DirectFieldAccessor fields) {
        var processors = (Collection<MessagePostProcessor>) fields.getPropertyValue("afterReceivePostProcessors");
        boolean batches = (boolean) fields.getPropertyValue("deBatchingEnabled");
        var its = new RetryAdvice.Unpacking(processors == null ? List.of() : List.copyOf(processors),
                batches ? (BatchingStrategy) fields.getPropertyValue("batchingStrategy") : null);
        container.setAfterReceivePostProcessors();
        container.setDeBatchingEnabled(false);
        return its;
    }

    private Optional<Retrier> retrier(String queue, AbstractMessageListenerContainer container) {
        RetryOptions its = options.get().apply(queue);
        if (!its.dlx) {
            return Optional.empty();
        }
        if (RESERVED.matcher(queue).matches()) {
            throw refused(container, "`" + queue + "` is named like a waiting or parking queue");
        }
        if ((queue + ".retry.31536000000").getBytes(StandardCharsets.UTF_8).length > 255) {
            throw refused(container, "the name `" + queue + "` is too long: the names of its waiting queues would be longer than 255 bytes");
        }
        return Optional.of(new Retrier(queue, its, brokers.computeIfAbsent(container.getConnectionFactory(), Broker::new)));
    }

    private static void check(AbstractMessageListenerContainer container) {
        if (container.getAcknowledgeMode() != AcknowledgeMode.AUTO) {
            throw refused(container, "its acknowledge mode is " + container.getAcknowledgeMode() + "; only with AUTO does a message stay unacknowledged "
                    + "until its copy is confirmed");
        }
        DirectFieldAccessor fields = new DirectFieldAccessor(container);
        if (container.isChannelTransacted() || fields.getPropertyValue("transactionManager") != null) {
            throw refused(container, "it is transactional, and a failure that is retried would commit; put @Transactional on the listener instead");
        }
        if (container instanceof SimpleMessageListenerContainer && (int) fields.getPropertyValue("batchSize") > 1) {
            throw refused(container, "its `batchSize` is more than 1: it acknowledges several messages together, and a failure of one brings back all; "
                    + "set it to 1");
        }
        MessageListener listener = container.getMessageListener();
        if (container.isConsumerBatchEnabled() || listener instanceof BatchMessageListener || listener instanceof ChannelAwareBatchMessageListener) {
            throw refused(container, "it takes batches, and only single messages can be retried; take `batch` or `consumerBatchEnabled` from it");
        }
        if (listener != null && listener.isAsyncReplies()) {
            throw refused(container, "its listener returns a future, a Mono or is suspended, and settles messages itself; let it return when it is done");
        }
    }

    private static IllegalStateException refused(AbstractMessageListenerContainer container, String why) {
        return new IllegalStateException("retryrmq cannot retry for the listener of " + Arrays.toString(container.getQueueNames()) + ": " + why
                + ". Or set dlx to false for its queue");
    }

    private static String host() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException unknown) {
            return "";
        }
    }
}
