package io.github.retryrmq.spring;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;

import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Envelope;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.jspecify.annotations.Nullable;
import org.springframework.amqp.ImmediateAcknowledgeAmqpException;
import org.springframework.amqp.ImmediateRequeueAmqpException;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.MessagePostProcessor;
import org.springframework.amqp.core.MessageProperties;
import org.springframework.amqp.listener.MessageRejectedWhileStoppingException;
import org.springframework.amqp.rabbit.batch.BatchingStrategy;
import org.springframework.amqp.rabbit.support.MessagePropertiesConverter;
import org.springframework.aop.ProxyMethodInvocation;

/**
 * Surrounds the listener of one container. When it returns, the container acknowledges the message: it was handled, or its copy is confirmed. When it
 * throws, the container requeues the message.
 */
final class RetryAdvice implements MethodInterceptor, MessagePropertiesConverter {

    /** A message's properties as the broker delivered them, and why Spring cannot read them. Spring's form of them loses what an exact copy needs. */
    private record Raw(BasicProperties properties, @Nullable RuntimeException unreadable) {
    }

    /**
     * What a container does with a message before its listener. It is done here instead, because what fails in the container is rejected or requeued.
     *
     * @param batching null if batches are not taken apart
     */
    record Unpacking(Collection<MessagePostProcessor> processors, @Nullable BatchingStrategy batching) {
    }

    /** What the listener is called with, and whether these are the parts of a batch. */
    private record Unpacked(List<Message> messages, boolean parts) {
    }

    private final Function<String, @Nullable Retrier> retriers;
    private final MessagePropertiesConverter converter;
    private final Unpacking unpacking;
    private final Isolation isolation;
    /** A container converts and handles a message on the same thread, one after the other. */
    private final ThreadLocal<Raw> raw = new ThreadLocal<>();

    RetryAdvice(Function<String, @Nullable Retrier> retriers, MessagePropertiesConverter converter, Unpacking unpacking, Isolation isolation) {
        this.retriers = retriers;
        this.converter = converter;
        this.unpacking = unpacking;
        this.isolation = isolation;
    }

    @Override
    public MessageProperties toMessageProperties(BasicProperties source, @Nullable Envelope envelope, String charset) {
        try {
            MessageProperties properties = converter.toMessageProperties(source, envelope, charset);
            raw.set(new Raw(source, null));
            return properties;
        } catch (RuntimeException unreadable) {
            raw.set(new Raw(source, unreadable));
            return converter.toMessageProperties(new BasicProperties(), envelope, charset);
        }
    }

    @Override
    public BasicProperties fromMessageProperties(MessageProperties source, String charset) {
        return converter.fromMessageProperties(source, charset);
    }

    @Override
    public @Nullable Object invoke(MethodInvocation invocation) throws Throwable {
        if (!(invocation.getArguments()[0] instanceof Channel channel) || !(invocation.getArguments()[1] instanceof Message message)) {
            throw new IllegalStateException("retryrmq retries single messages; take `batch` from the listener, or set dlx to false for its queue");
        }
        Raw known = raw.get();
        raw.remove();
        RuntimeException unreadable = known == null ? null : known.unreadable;
        Retrier retrier = retriers.apply(message.getMessageProperties().getConsumerQueue());
        if (retrier == null) {
            if (unreadable != null) {
                throw new ImmediateRequeueAmqpException("the properties of a message cannot be read", unreadable);
            }
            for (Message each : unpack(message).messages) {
                proceed(invocation, channel, each);
            }
            return null;
        }
        Retrier.Delivery delivery = delivery(message, known, channel, retrier);
        RetryState state = delivery.state();
        RetryState.Admission admission = state.admit(retrier.options().crashLimit);
        if (admission == RetryState.Admission.RUN || admission == RetryState.Admission.DETOUR && state.crashesOfDetour() < RetryState.SUSPECT) {
            isolation.ordinary();
        }
        if (admission == RetryState.Admission.DETOUR) {
            retrier.detour(delivery, state.crashesOfDetour());
            return null;
        }
        if (admission == RetryState.Admission.PARK) {
            retrier.crashed(delivery);
            return null;
        }
        if (admission == RetryState.Admission.RUN_ALONE && !isolation.admitsSuspect()) {
            retrier.detour(delivery, state.crashes());
            return null;
        }
        if (unreadable != null) {
            retrier.unreadable(delivery, unreadable);
            return null;
        }
        MessageProperties before = new MessageProperties();
        before.setContentType(message.getMessageProperties().getContentType());
        before.setContentEncoding(message.getMessageProperties().getContentEncoding());
        before.getHeaders().putAll(message.getMessageProperties().getHeaders());
        Unpacked unpacked;
        try {
            unpacked = unpack(message);
        } catch (OutOfMemoryError | InternalError fatal) {
            throw fatal;
        } catch (Throwable thrown) {
            if (Failure.cause(thrown, ImmediateAcknowledgeAmqpException.class) != null) {
                throw thrown;
            }
            retrier.unreadable(delivery, thrown);
            return null;
        }
        for (Message each : unpacked.messages) {
            Retrier.Delivery its = unpacked.parts ? part(delivery, before, each) : delivery;
            try {
                proceed(invocation, channel, each);
            } catch (MessageRejectedWhileStoppingException unstarted) {
                throw unstarted;
            } catch (OutOfMemoryError | InternalError fatal) {
                throw fatal;
            } catch (Throwable thrown) {
                if (Failure.cause(thrown, ImmediateAcknowledgeAmqpException.class) == null) {
                    retrier.failed(its, thrown);
                } else if (!unpacked.parts) {
                    throw thrown;
                }
            }
        }
        return null;
    }

    private static void proceed(MethodInvocation invocation, Channel channel, Message message) throws Throwable {
        ((ProxyMethodInvocation) invocation).invocableClone(channel, message).proceed();
    }

    /** Takes all parts of a batch before the first is handled: if one of them cannot be read, none is. */
    private Unpacked unpack(Message message) {
        Message processed = message;
        for (MessagePostProcessor processor : unpacking.processors) {
            processed = processor.postProcessMessage(processed);
        }
        if (unpacking.batching == null || !unpacking.batching.canDebatch(processed.getMessageProperties())) {
            return new Unpacked(List.of(processed), false);
        }
        List<Message> parts = new ArrayList<>();
        unpacking.batching.deBatch(processed, parts::add);
        return new Unpacked(parts, true);
    }

    /** A part of a batch is retried as a message of its own: unpacked, and without what said how to unpack it. */
    private static Retrier.Delivery part(Retrier.Delivery batch, MessageProperties before, Message part) {
        MessageProperties after = part.getMessageProperties();
        after.setContentLength(part.getBody().length);
        BasicProperties.Builder properties = batch.properties().builder();
        if (!Objects.equals(before.getContentType(), after.getContentType())) {
            properties.contentType(after.getContentType());
        }
        if (!Objects.equals(before.getContentEncoding(), after.getContentEncoding())) {
            properties.contentEncoding(after.getContentEncoding());
        }
        Map<String, Object> headers = new HashMap<>(batch.properties().getHeaders());
        before.getHeaders().keySet().stream().filter(name -> !after.getHeaders().containsKey(name)).forEach(headers::remove);
        return new Retrier.Delivery(properties.headers(headers).build(), part.getBody(), batch.state(), batch.exchange(), batch.routingKey(),
                batch.lost());
    }

    /** Reads the state of a message, and shows it to the listener as it was first published. */
    private Retrier.Delivery delivery(Message message, @Nullable Raw known, Channel channel, Retrier retrier) {
        MessageProperties shown = message.getMessageProperties();
        BasicProperties properties = known == null ? converter.fromMessageProperties(shown, "UTF-8") : known.properties;
        boolean redelivered = Boolean.TRUE.equals(shown.getRedelivered());
        RetryState state = RetryState.read(shown.getConsumerQueue(), redelivered, retrier.isClassic(), properties);
        String exchange = state.exchange() == null ? orEmpty(shown.getReceivedExchange()) : state.exchange();
        String routingKey = state.routingKey() == null ? orEmpty(shown.getReceivedRoutingKey()) : state.routingKey();
        shown.setReceivedExchange(exchange);
        shown.setReceivedRoutingKey(routingKey);
        shown.setRetryCount(state.retries());
        if (shown.getReplyTo() == null && properties.getHeaders() != null
                && Copy.DIRECT_REPLY_TO.equals(RetryState.text(properties.getHeaders().get("x-retry-reply-to")))) {
            shown.setReplyTo(Copy.DIRECT_REPLY_TO);
        }
        return new Retrier.Delivery(properties, message.getBody(), state, exchange, routingKey, () -> !channel.isOpen());
    }

    private static String orEmpty(@Nullable String text) {
        return text == null ? "" : text;
    }
}
