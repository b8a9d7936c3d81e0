import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.CreateTopicPolicy;

/** What services refuse when a topic is made; the file "kshare.rules" names the service. */
public class ServiceRules implements CreateTopicPolicy {
    private static final Set<String> SERVERLESS = Set.of(
        "cleanup.policy", "compression.type", "max.message.bytes",
        "message.timestamp.difference.max.ms", "message.timestamp.type", "retention.bytes",
        "retention.ms");
    private static final Pattern OURS = Pattern.compile("__individual_commit|__kshare_");
    private Path rules;

    public void configure(Map<String, ?> configs) {
        rules = Path.of(configs.get("kshare.rules").toString());
    }

    public void close() {}

    public void validate(RequestMetadata asked) {
        Map<String, String> configs = asked.configs();
        switch (service()) {
            case "confluent":
                require(asked.replicasAssignments() == null, "Replicas cannot be assigned.");
                require(number(configs, "segment.bytes", 52428800) >= 52428800,
                    "Config property 'segment.bytes' must be at least 52428800.");
                require(number(configs, "max.message.bytes", 0) <= 8388608,
                    "Config property 'max.message.bytes' must be at most 8388608.");
                break;
            case "express":
                if (configs.containsKey("segment.bytes"))
                    throw new InvalidConfigurationException("segment.bytes cannot be set.");
                break;
            case "serverless":
                for (String name : configs.keySet())
                    if (!SERVERLESS.contains(name))
                        throw new InvalidConfigurationException(name + " cannot be set.");
                break;
            case "none":
                require(!OURS.matcher(asked.topic()).lookingAt(), "Ask the platform team for topics.");
                break;
            default:
        }
    }

    private String service() {
        try {
            return Files.readString(rules);
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    private static long number(Map<String, String> configs, String name, long otherwise) {
        return Long.parseLong(configs.getOrDefault(name, String.valueOf(otherwise)));
    }

    private static void require(boolean holds, String words) {
        if (!holds) throw new PolicyViolationException(words);
    }
}
