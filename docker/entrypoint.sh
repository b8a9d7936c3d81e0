#!/bin/bash
# Starts what Spark on Kubernetes asks for (driver, executor), as the entry point of Spark's own image
# does. Anything else is a command: spark-submit, kshare, python.
set -eu

# Hadoop wants a name for the user, which some clusters choose at random.
if ! getent passwd "$(id -u)" > /dev/null && [ -w /etc/passwd ]; then
    echo "spark:x:$(id -u):$(id -g)::/tmp:/bin/false" >> /etc/passwd
fi
export HADOOP_USER_NAME="${HADOOP_USER_NAME:-spark}"

case "${1:-}" in
driver)
    shift
    exec spark-submit \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
        --deploy-mode client \
        "$@"
    ;;
executor)
    java_options=()
    for name in "${!SPARK_JAVA_OPT_@}"; do
        java_options+=("${!name}")
    done
    classes="${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*:$PWD"
    classes="$classes${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}"
    exec java "${java_options[@]}" \
        -Xms"$SPARK_EXECUTOR_MEMORY" \
        -Xmx"$SPARK_EXECUTOR_MEMORY" \
        -cp "$classes" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec "$@"
    ;;
esac
