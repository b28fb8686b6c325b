// SPDX-License-Identifier: Apache-2.0
//
// The digits with a parameter server: rank 0 owns the network's parameters. The other ranks push gradients to it by
// RPC, asynchronously, and get the current parameters back.
//
//     backplane run -n 4 parameter_server
#include <algorithm>
#include <backplane/rpc.hpp>
#include <cstdio>
#include <exception>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "options.hpp"

namespace rpc = backplane::rpc;

namespace {

using Parameters = std::vector<double>;

// Lives on rank 0.
class Server {
 public:
  Server(int width, uint64_t seed) : network_(width) { network_.initialise(seed); }

  // Takes a gradient step for a number of samples. Returns the new parameters.
  Parameters push(const rpc::Array<double>& gradient, double samples, double rate) {
    const std::lock_guard lock(mutex_);
    const auto parameters = network_.parameters();
    for (uint64_t i = 0; i < gradient.size(); ++i) parameters[i] -= rate * gradient[i] / samples;
    ++pushes_;
    return {parameters.begin(), parameters.end()};
  }
  Parameters parameters() {
    const std::lock_guard lock(mutex_);
    return {network_.parameters().begin(), network_.parameters().end()};
  }
  int pushes() const { return pushes_; }
  // Accuracy on the held-out digits after training, in percent.
  double accuracy(const digits::DataSet& data) const {
    const auto right = std::count_if(data.held_out.begin(), data.held_out.end(), [this](const digits::Sample& sample) {
      return network_.classify(sample) == sample.digit;
    });
    return 100.0 * static_cast<double>(right) / static_cast<double>(data.held_out.size());
  }

 private:
  std::mutex mutex_;
  digits::Network network_;
  int pushes_ = 0;
};
using ServerRef = rpc::RRef<rpc::Local<Server>>;

std::vector<double> gradient_of(const digits::Network& network, const std::vector<const digits::Sample*>& batch,
                                size_t parameters) {
  std::vector<double> gradient(parameters, 0.0);
  for (const digits::Sample* sample : batch) {
    const digits::Network::Pass pass = network.pass(*sample);
    for (const auto& part : network.parts()) {
      network.add_gradient(pass, part, std::span(gradient).subspan(part.begin, part.size));
    }
  }
  return gradient;
}

// A worker: has its own order of the samples and its share of the batches of each epoch.
void work(const ServerRef& server, const digits::DataSet& data, const digits::Settings& settings, int worker,
          int workers) {
  digits::Network network(settings.width);
  const auto take_over = [&network](const Parameters& parameters) {
    std::copy(parameters.begin(), parameters.end(), network.parameters().begin());
  };
  take_over(rpc::rpc_sync<Parameters>(server.owner(), "parameters", server));
  std::mt19937_64 random(settings.seed + static_cast<uint64_t>(worker));
  const auto batches = static_cast<int>(data.training.size()) / settings.batch / workers;
  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    const double rate = settings.learning_rate * (1.0 - static_cast<double>(epoch) / settings.epochs);
    for (int b = 0; b < batches; ++b) {
      std::vector<const digits::Sample*> batch;
      for (int i = 0; i < settings.batch; ++i) batch.push_back(&data.training[random() % data.training.size()]);
      rpc::Array<double> gradient(gradient_of(network, batch, network.parameters().size()));
      take_over(rpc::rpc_sync<Parameters>(server.owner(), "push", server, gradient, 1.0 * settings.batch, rate));
    }
  }
}

int run(const digits::Options& options) {
  const auto data = digits::parse(digits::read_file(options.data.empty() ? digits::default_data_path() : options.data));
  rpc::register_function("server", [](int width, uint64_t seed) { return rpc::Local<Server>::make(width, seed); });
  rpc::register_function("parameters", [](const ServerRef& server) { return server.local_value()->parameters(); });
  rpc::register_function("push", [](const ServerRef& server, const rpc::Array<double>& gradient, double samples,
                                    double rate) { return server.local_value()->push(gradient, samples, rate); });
  rpc::register_function("work", [&](const ServerRef& server, int worker, int workers) {
    work(server, data, options.settings, worker, workers);
  });
  backplane::ProcessGroup group = backplane::init_process_group();
  const rpc::Worker self = rpc::init_rpc("worker" + std::to_string(group.rank()));
  double accuracy = 100;
  if (self.rank() == 0) {
    const ServerRef server =
        self.remote<rpc::Local<Server>>(0, "server", options.settings.width, options.settings.seed);
    const int workers = self.world_size() - 1;
    std::vector<rpc::Future<void>> ends;
    for (int worker = 1; worker <= workers; ++worker) {
      ends.push_back(self.rpc_async({worker, backplane::kNoTimeout}, "work", server, worker, workers));
    }
    for (const auto& end : ends) end.wait();
    accuracy = server.local_value()->accuracy(data);
    std::printf("%d workers pushed %d gradients by %s; %.2f%% of the held-out digits right\n", workers,
                server.local_value()->pushes(), self.backend().c_str(), accuracy);
  }
  self.shutdown();
  backplane::destroy_process_group();
  if (accuracy >= options.require_accuracy) return 0;
  std::fprintf(stderr, "parameter_server: %.2f%% is less than the %.2f%% required\n", accuracy,
               options.require_accuracy);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const digits::Options options = digits::parse_options(argc, argv);
    if (options.help) {
      std::fputs(digits::kUsage, stdout);
      return 0;
    }
    return run(options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "parameter_server: %s\n", e.what());
    return 1;
  }
}
