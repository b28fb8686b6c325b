// SPDX-License-Identifier: Apache-2.0
//
// Maps between devices of different workers: torch's device_maps, their rules, and the reverse maps for results. Pure
// functions.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::tensorpipe {

using DeviceMap = std::map<int, int>;                 // local device to remote device
using DeviceMaps = std::map<std::string, DeviceMap>;  // by the remote worker's name

using DeviceSet = std::set<int>;

// Parses "worker1:0=1,1=0;worker2:0=0"; empty text: no maps. Throws sdk::Failure (BP_INVALID) with the wrong part, also
// if a device occurs twice on either side.
DeviceMaps parse_device_maps(std::string_view text);
std::string format_device_maps(const DeviceMaps& maps);

// The devices and maps of a worker, as published to all.
struct WorkerDevices {
  std::string name;
  int count = 0;  // number of devices
  DeviceMaps maps;
  std::string absence_reason = {};  // why there are none; known on this worker only
};

// Throws sdk::Failure (BP_INVALID) for the first worker whose maps name an unknown worker or a device that does not
// exist.
void check_device_maps(const std::vector<WorkerDevices>& workers);

// The reverse maps of worker `name`, from the maps of its callers: {"caller": {device here: device there}}.
DeviceMaps reverse_device_maps(const std::vector<WorkerDevices>& workers, const std::string& name);

// The devices of worker `to` to which buffers on devices of worker `from` are sent: by the map of `from`, and for
// devices not in it by the reverse of the map of `to`. Messages do not distinguish calls from results.
DeviceMap device_map_between(const WorkerDevices& from, const WorkerDevices& to);

}  // namespace backplane::tensorpipe
