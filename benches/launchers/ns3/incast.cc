// Sixteen senders of UDP packets, one router, one receiver: the load of `incast --fabric sim --mode none`, in ns-3.
//
//   incast SENDERS LINK_MBPS MESSAGE_BYTES BUFFER_BYTES SECONDS
//
// ns-3 has no Ethernet switch for point-to-point links, so a router takes its place. Each sender sends at the rate of
// its link; the router's queue to the receiver drops from its tail. Prints packets sent, packets received, and the seconds
// of wall time that they took.
#include <chrono>
#include <iostream>

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

using namespace ns3;

namespace {
// Bytes of the headers of UDP, IP and the link around each message.
constexpr double kHeaders = 8 + 20 + 2;
constexpr uint16_t kPort = 9;
uint64_t sent = 0;
uint64_t received = 0;

void CountSent(Ptr<const Packet>) { ++sent; }
void CountReceived(Ptr<const Packet>, const Address&) { ++received; }
}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: incast SENDERS LINK_MBPS MESSAGE_BYTES BUFFER_BYTES SECONDS\n";
    return 2;
  }
  const uint32_t senders = std::stoul(argv[1]);
  const double megabits = std::stod(argv[2]), bytes = std::stod(argv[3]), seconds = std::stod(argv[5]);
  const std::string rate = std::to_string(static_cast<uint64_t>(megabits * 1e6)) + "bps";

  NodeContainer hosts(senders + 1), router(1);
  InternetStackHelper internet;
  internet.Install(hosts);
  internet.Install(router);

  PointToPointHelper link;
  link.SetDeviceAttribute("DataRate", StringValue(rate));
  link.SetChannelAttribute("Delay", StringValue("1us"));
  link.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue(std::string(argv[4]) + "B"));
  Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
  TrafficControlHelper discipline;
  Ipv4Address receiver;
  for (uint32_t host = 0; host <= senders; ++host) {
    NetDeviceContainer devices = link.Install(hosts.Get(host), router.Get(0));
    Ipv4InterfaceContainer interfaces = addresses.Assign(devices);
    discipline.Uninstall(devices);  // the queues of the devices alone
    if (host == 0) receiver = interfaces.GetAddress(0);
    addresses.NewNetwork();
  }
  Ipv4GlobalRoutingHelper::PopulateRoutingTables();

  PacketSinkHelper sink("ns3::UdpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), kPort));
  sink.Install(hosts.Get(0)).Get(0)->TraceConnectWithoutContext("Rx", MakeCallback(&CountReceived));
  OnOffHelper source("ns3::UdpSocketFactory", InetSocketAddress(receiver, kPort));
  const auto payload = static_cast<uint64_t>(megabits * 1e6 * bytes / (bytes + kHeaders));
  source.SetConstantRate(DataRate(payload), static_cast<uint32_t>(bytes));
  for (uint32_t host = 1; host <= senders; ++host) {
    source.Install(hosts.Get(host)).Get(0)->TraceConnectWithoutContext("Tx", MakeCallback(&CountSent));
  }

  Simulator::Stop(Seconds(seconds));
  const auto begun = std::chrono::steady_clock::now();
  Simulator::Run();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
  std::cout << sent << ' ' << received << ' ' << taken.count() << '\n';
  Simulator::Destroy();
  return 0;
}
