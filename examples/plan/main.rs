#[path = "../common/chains.rs"]
mod chains;
mod document;
mod report;
mod study;
mod paper;
fn main() { paper::run().print(); 
 let t=std::io::read_to_string(std::io::stdin()).unwrap(); match document::solve(&t) {Ok(s)=>println!("{}",document::answer(&s)),Err(e)=>eprintln!("{e}")} }
