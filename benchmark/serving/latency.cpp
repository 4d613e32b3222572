// Measures how long a served model takes to classify a batch of images.
//
//   latency DEVICE IMAGES SECONDS (WAY MODEL)...
//
// IMAGES, WAY and MODEL are those of classify. The batches are one image and all of them. Each line
// of the output is a measurement, in JSON:
//
//   way, runners        how the model is served. A package is loaded with one runner, and with two
//   batch               images per call
//   callers             threads that call the model at the same time, each without a pause
//   threads             threads that compute each call
//   calls               how many calls were measured, in SECONDS or a little more
//   p50_us, p99_us      percentiles of their latency, in microseconds
//   images_per_second   of all callers together
//
// The cases take turns, several times over, so that whatever else the machine does affects them
// alike.

#include "model.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include <latch>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

constexpr int kRounds = 5;
// TorchScript optimizes a model during its first calls, and OpenMP starts its threads in the first
// call of each of ours.
constexpr int kWarmUpCalls = 10;

struct Load {
  int callers;
  int threads;
};
constexpr Load kLoads[] = {{1, 1}, {1, 2}, {2, 1}};

struct Server {
  std::string way;
  size_t runners;
  std::unique_ptr<digits::Model> model;
};

struct Case {
  const Server& server;
  at::Tensor images;
  Load load;
  std::vector<double> latencies;  // of the calls of all callers, in microseconds
};

// Calls the model for some time, and returns the latency of each call in microseconds.
std::vector<double> call(digits::Model& model,
                         const at::Tensor& images,
                         int threads,
                         double seconds,
                         std::latch& all_are_warm) {
  const c10::InferenceMode no_gradients;
  at::set_num_threads(threads);  // of the calls of this thread
  try {
    for (int warm_up = 0; warm_up < kWarmUpCalls; ++warm_up) {
      model.logits(images);
    }
  } catch (...) {
    all_are_warm.count_down();  // the others would wait for ever
    throw;
  }
  all_are_warm.arrive_and_wait();

  std::vector<double> latencies;
  const auto start = Clock::now();
  auto before = start;
  while (before - start < std::chrono::duration<double>(seconds)) {
    model.logits(images);
    const auto after = Clock::now();
    latencies.push_back(Microseconds(after - before).count());
    before = after;
  }
  return latencies;
}

void measure(Case& measured, double seconds) {
  std::latch all_are_warm(measured.load.callers);
  std::vector<std::future<std::vector<double>>> callers;
  for (int caller = 0; caller < measured.load.callers; ++caller) {
    callers.push_back(std::async(std::launch::async, [&] {
      return call(
          *measured.server.model, measured.images, measured.load.threads, seconds, all_are_warm);
    }));
  }
  for (auto& caller : callers) {
    const std::vector<double> latencies = caller.get();
    measured.latencies.insert(measured.latencies.end(), latencies.begin(), latencies.end());
  }
}

// The smallest latency that this part of the calls does not exceed.
double percentile(std::vector<double>& latencies, double part) {
  const auto rank = static_cast<size_t>(part * static_cast<double>(latencies.size() - 1));
  std::nth_element(latencies.begin(), latencies.begin() + rank, latencies.end());
  return latencies[rank];
}

void print(Case& measured) {
  // Callers do not pause, so each of them completes a call per mean latency.
  const double busy = std::accumulate(measured.latencies.begin(), measured.latencies.end(), 0.0);
  const double calls_per_second =
      1e6 * measured.load.callers * static_cast<double>(measured.latencies.size()) / busy;
  std::printf(
      "{\"way\": \"%s\", \"runners\": %zu, \"batch\": %lld, \"callers\": %d, \"threads\": %d, "
      "\"calls\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"images_per_second\": %.0f}\n",
      measured.server.way.c_str(),
      measured.server.runners,
      static_cast<long long>(measured.images.size(0)),
      measured.load.callers,
      measured.load.threads,
      measured.latencies.size(),
      percentile(measured.latencies, 0.5),
      percentile(measured.latencies, 0.99),
      calls_per_second * static_cast<double>(measured.images.size(0)));
}

void run(const c10::Device& device,
         const std::string& images_path,
         double seconds,
         const std::vector<std::pair<std::string, std::string>>& models) {
  std::vector<Server> servers;
  for (const auto& [way, path] : models) {
    for (size_t runners = 1; runners <= (way == "package" ? 2 : 1); ++runners) {
      servers.push_back({way, runners, digits::load(way, path, device, runners)});
    }
  }
  const at::Tensor images = digits::tensor(digits::read(images_path), "images").to(device);

  std::vector<Case> cases;
  for (const int64_t batch : {int64_t{1}, images.size(0)}) {
    for (const Server& server : servers) {
      for (const Load& load : kLoads) {
        if (load.threads == 1 || device.is_cpu()) {
          cases.push_back({server, images.narrow(0, 0, batch), load, {}});
        }
      }
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Case& measured : cases) {
      measure(measured, seconds / kRounds);
    }
  }
  for (Case& measured : cases) {
    print(measured);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6 || argc % 2 != 0) {
    std::fprintf(stderr, "usage: %s DEVICE IMAGES SECONDS (WAY MODEL)...\n", argv[0]);
    return 2;
  }
  return digits::run_program(argv[0], [&] {
    std::vector<std::pair<std::string, std::string>> models;
    for (int index = 4; index < argc; index += 2) {
      models.emplace_back(argv[index], argv[index + 1]);
    }
    run(c10::Device(argv[1]), argv[2], std::stod(argv[3]), models);
  });
}
